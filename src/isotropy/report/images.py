"""Figures as files: pages of their own, or pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, MissingExtraError
from isotropy.sources.guard import guard, output_path
from isotropy.writing import explained, shown, whole

PICTURES = (".svg", ".png", ".pdf")


def check_image(
    path: Any,
    caller: str,
    inputs: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
    name: str = "path",
) -> Path:
    """The file of a figure; raises where none can be written there. Inputs as of `guard`."""
    target = Path(output_path(path, name, caller))
    if target.suffix not in (".html", *PICTURES) or target.is_dir():
        raise InputError(
            f"{caller}: {name} must end in .html, {', '.join(PICTURES)}, got {shown(path)}."
        )
    guard({name: path}, inputs, overwrite=overwrite, caller=caller)
    if target.suffix in PICTURES and importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError(
            f"{caller}: a picture needs kaleido, which is not installed. "
            'Run: pip install "isotropy[report]", or write .html.'
        )
    return target


def write_image(figure: Any, path: Any, caller: str = "report", *, overwrite: bool = False) -> None:
    """Write a plotly figure as .html, .svg, .png or .pdf; pictures are drawn by a Chromium.

    The file appears whole or not at all; one that is there is replaced with `overwrite` only.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from isotropy.report import charts, write_image
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(charts.norms(X), f"{folder}/norms.html")
    """
    target = check_image(path, caller, overwrite=overwrite)
    try:
        with explained(target, caller), whole(target, overwrite=overwrite) as part:
            if target.suffix == ".html":
                figure.write_html(part, include_plotlyjs=True)
            else:
                figure.write_image(part, format=target.suffix[1:])
    except InputError:
        raise
    except Exception as error:  # kaleido's own kinds, where no browser can be started
        if "chrom" not in f"{error}".lower():
            raise
        raise InputError(
            f"{caller}: a picture needs Chrome or Chromium, and none could be started. Install "
            "one, or write .html."
        ) from None

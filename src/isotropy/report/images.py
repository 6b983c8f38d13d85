"""Figures as files: pages of their own, or pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, MissingExtraError, reason

PICTURES = (".svg", ".png", ".pdf")


def check_image(path: Path, caller: str) -> None:
    """Raise where no figure can be written to path."""
    if path.suffix not in (".html", *PICTURES):
        raise InputError(
            f"{caller}: --out must end in .html, {', '.join(PICTURES)}, got {str(path)!r}."
        )
    if not path.parent.is_dir():
        raise InputError(f"{caller}: --out {str(path)!r} must be in an existing folder.")
    if path.suffix in PICTURES and importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError(
            f"{caller}: a picture needs kaleido, which is not installed. "
            'Run: pip install "isotropy[report]", or write .html.'
        )


def write_image(figure: Any, path: Any, caller: str = "report") -> None:
    """Write a plotly figure as .html, .svg, .png or .pdf; pictures are drawn by a Chromium.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from isotropy.report import charts, write_image
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(charts.norms(X), f"{folder}/norms.html")
    """
    target = Path(path)
    check_image(target, caller)
    try:
        if target.suffix == ".html":
            figure.write_html(target, include_plotlyjs=True)
        else:
            figure.write_image(target)
    except OSError as error:
        raise InputError(
            f"{caller}: {str(path)!r} could not be written ({reason(error)})."
        ) from None
    except Exception as error:  # kaleido's own kinds, where no browser can be started
        if "chrom" not in f"{error}".lower():
            raise
        raise InputError(
            f"{caller}: a picture needs Chrome or Chromium, and none could be started. Install "
            "one, or write .html."
        ) from None

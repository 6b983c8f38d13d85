"""The chart of `isotropy layers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotropy.errors import InputError, MissingExtraError, reason

if TYPE_CHECKING:
    from isotropy.cli.layers import Layers

IMAGES = (".svg", ".png", ".pdf")
COLORS = ("#1f77b4", "#d62728")


def check_chart(path: Path) -> None:
    """Raise where no chart can be written to path."""
    if path.suffix not in (".html", *IMAGES):
        raise InputError(
            f"layers: --out must end in .html, {', '.join(IMAGES)}, got {str(path)!r}."
        )
    if not path.parent.is_dir():
        raise InputError(f"layers: --out {str(path)!r} must be in an existing folder.")
    _plotly()
    if path.suffix in IMAGES:
        _needed("kaleido", "pip install kaleido, or write .html")


def write_chart(path: Path, models: Sequence[Layers]) -> None:
    """Draw -log10 I by layer, one model's beside the other's."""
    plotly = _plotly()
    figure = plotly.Figure()
    for model, color in zip(models, COLORS, strict=False):
        for kind, dash in (("tokens", "solid"), ("cls", "dash")):
            heights = [_height(geometry) for geometry in getattr(model, kind)]
            name = f"{Path(model.model).name}, {model.title(kind)}"
            line = {"color": color, "dash": dash}
            figure.add_scatter(y=heights, name=name, line=line, mode="lines+markers")
    figure.update_layout(
        title="Isotropy by layer: lower is more isotropic",
        xaxis={"title": "layer", "dtick": 1},
        yaxis={"title": "-log10 I"},
        template="plotly_white",
    )
    try:
        if path.suffix == ".html":
            figure.write_html(path, include_plotlyjs=True)
        else:
            figure.write_image(path)
    except OSError as error:
        raise InputError(f"layers: {str(path)!r} could not be written ({reason(error)}).") from None


def _height(geometry: Any) -> float | None:
    height = -geometry.log_partition_isotropy / math.log(10)
    return height if math.isfinite(height) else None


def _plotly() -> Any:
    return _needed("plotly.graph_objects", 'pip install "isotropy[report]"')


def _needed(module: str, fix: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise MissingExtraError(
            f"layers: --out needs {name}, which is not installed. Run: {fix}."
        ) from None

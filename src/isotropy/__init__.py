"""isotropy: measure how evenly an embedding space is used, and repair it where it is not."""

import importlib
from typing import TYPE_CHECKING, Any

from isotropy import metrics, repairs, stats
from isotropy._version import __version__
from isotropy.measure import Geometry, measure
from isotropy.models import Embeddings, Encoder, KeyedVectors, embeddings
from isotropy.repairs import (
    AllButTheTop,
    Center,
    ClusterRemoval,
    ScaledCenter,
    ScoreCalibrator,
    Standardize,
    Whiten,
    load,
)
from isotropy.sources import open as open  # not in __all__: it would hide the built-in

if TYPE_CHECKING:
    from isotropy import evidence, losses, tasks
    from isotropy import report as report
    from isotropy.evidence import Advice, Comparison, advise, compare

LATER = {  # what is loaded when it is first asked for; report, which needs an extra, is not in *
    "evidence": "isotropy.evidence",
    "report": "isotropy.report",
    "tasks": "isotropy.tasks",
    "losses": "isotropy.losses",
    **dict.fromkeys(("Advice", "Comparison", "advise", "compare"), "isotropy.evidence"),
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'isotropy' has no attribute {name!r}")
    module = importlib.import_module(LATER[name])
    return module if LATER[name] == f"isotropy.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})


__all__ = [
    "Advice",
    "AllButTheTop",
    "Center",
    "ClusterRemoval",
    "Comparison",
    "Embeddings",
    "Encoder",
    "Geometry",
    "KeyedVectors",
    "ScaledCenter",
    "ScoreCalibrator",
    "Standardize",
    "Whiten",
    "__version__",
    "advise",
    "compare",
    "embeddings",
    "evidence",
    "load",
    "losses",
    "measure",
    "metrics",
    "repairs",
    "stats",
    "tasks",
]

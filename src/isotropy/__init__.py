"""isotropy: measure how isotropic an embedding space is, repair it, and test if that helps.

Every public name is imported when it is first used, so that `isotropy --help` answers at once. No
module of the package may have the name of a public function: importing it would hide the function.
"""

import importlib
from typing import TYPE_CHECKING, Any

from isotropy._version import __version__

if TYPE_CHECKING:
    from isotropy import (
        codecs,
        evidence,
        examples,
        export,
        losses,
        metrics,
        repairs,
        stats,
        tasks,
        testing,
    )
    from isotropy import report as report
    from isotropy.codecs import load
    from isotropy.evidence import (
        Advice,
        Comparison,
        Compression,
        Diagnosis,
        advise,
        compare,
        compress,
        diagnose,
    )
    from isotropy.geometry import Geometry, measure
    from isotropy.layer_geometry import LayerGeometry, layers
    from isotropy.models import Embeddings, Encoder, KeyedVectors, open_encoder
    from isotropy.models import embeddings as embeddings
    from isotropy.repairs import (
        AllButTheTop,
        Center,
        Chain,
        ClusterRemoval,
        PerGroup,
        Rotate,
        ScaledCenter,
        ScoreCalibrator,
        Standardize,
        Whiten,
    )
    from isotropy.sources import open as open  # not in __all__: it would hide the built-in

MODULES = {"codecs", "engines", "evidence", "examples", "export", "losses", "metrics", "models"}
MODULES |= {"repairs", "report", "sources", "stats", "tasks", "testing"}
HOME = {  # name: the module it comes from
    **dict.fromkeys(("Advice", "Comparison", "Compression", "Diagnosis"), "evidence"),
    **dict.fromkeys(("advise", "compare", "compress", "diagnose"), "evidence"),
    **dict.fromkeys(("Geometry", "measure"), "geometry"),
    **dict.fromkeys(("LayerGeometry", "layers"), "layer_geometry"),
    **dict.fromkeys(("Embeddings", "Encoder", "KeyedVectors"), "models"),
    **dict.fromkeys(("embeddings", "open_encoder"), "models"),
    **dict.fromkeys(("AllButTheTop", "Center", "ClusterRemoval", "ScaledCenter"), "repairs"),
    **dict.fromkeys(("PerGroup", "ScoreCalibrator", "Standardize", "Whiten"), "repairs"),
    "load": "codecs",
    **dict.fromkeys(("Chain", "Rotate"), "repairs"),
    "open": "sources",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"isotropy.{name}")
    if name not in HOME:
        raise AttributeError(f"module 'isotropy' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"isotropy.{HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES, *HOME})


__all__ = [
    "Advice",
    "AllButTheTop",
    "Center",
    "Chain",
    "ClusterRemoval",
    "Comparison",
    "Compression",
    "Diagnosis",
    "Embeddings",
    "Encoder",
    "Geometry",
    "KeyedVectors",
    "LayerGeometry",
    "PerGroup",
    "Rotate",
    "ScaledCenter",
    "ScoreCalibrator",
    "Standardize",
    "Whiten",
    "__version__",
    "advise",
    "codecs",
    "compare",
    "compress",
    "diagnose",
    "embeddings",
    "evidence",
    "examples",
    "export",
    "layers",
    "load",
    "losses",
    "measure",
    "metrics",
    "open_encoder",
    "repairs",
    "stats",
    "tasks",
    "testing",
]

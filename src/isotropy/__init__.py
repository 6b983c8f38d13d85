"""isotropy: measure how evenly an embedding space is used, and repair it where it is not."""

from isotropy import metrics, repairs, stats
from isotropy._version import __version__
from isotropy.measure import Geometry, measure
from isotropy.repairs import (
    AllButTheTop,
    Center,
    ClusterRemoval,
    ScaledCenter,
    Standardize,
    Whiten,
    load,
)
from isotropy.sources import open as open  # not in __all__: it would hide the built-in

__all__ = [
    "AllButTheTop",
    "Center",
    "ClusterRemoval",
    "Geometry",
    "ScaledCenter",
    "Standardize",
    "Whiten",
    "__version__",
    "load",
    "measure",
    "metrics",
    "repairs",
    "stats",
]

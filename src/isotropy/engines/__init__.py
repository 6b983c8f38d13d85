"""Where the work runs: the only place that knows."""

from isotropy.engines.base import Engine
from isotropy.engines.local import Local, over_threads
from isotropy.engines.run import Progress, map_rows, named, reduce, using

__all__ = [
    "Engine",
    "Local",
    "Progress",
    "map_rows",
    "named",
    "over_threads",
    "reduce",
    "using",
]

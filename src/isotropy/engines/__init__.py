"""Where the work runs. No other part of the package knows."""

from isotropy.engines.base import Engine
from isotropy.engines.checkpoint import Checkpoint, open_checkpoint
from isotropy.engines.local import Local
from isotropy.engines.passes import PassProgress, Reduced, map_rows, named, reduce, using

__all__ = [
    "Checkpoint",
    "Engine",
    "Local",
    "PassProgress",
    "Reduced",
    "map_rows",
    "named",
    "open_checkpoint",
    "reduce",
    "using",
]

"""Where the work runs: the only place that knows."""

from isotropy.engines.local import over_threads, reduce

__all__ = ["over_threads", "reduce"]

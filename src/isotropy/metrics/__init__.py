"""Metrics: pure functions of statistics, each declared once with `@metric`."""

from isotropy.metrics.base import (
    METRICS,
    SAMPLE_ROWS,
    Metric,
    Statistics,
    gather,
    metric,
    undefined,
)
from isotropy.metrics.cosine import mean_cosine, rogue_dimensions
from isotropy.metrics.hubs import antihubs, hubness
from isotropy.metrics.isoscore import isoscore
from isotropy.metrics.local import local_isotropy
from isotropy.metrics.norms import mean_alignment, mean_norm_ratio, norms
from isotropy.metrics.partition import (
    isotropy_range,
    partition_dispersion,
    partition_isotropy,
    warn_of_basis,
)
from isotropy.metrics.spectrum import (
    effective_rank,
    explained,
    explained_variance,
    participation_ratio,
    singular_values,
)
from isotropy.metrics.uniformity import uniformity

__all__ = [
    "METRICS",
    "Metric",
    "Statistics",
    "antihubs",
    "effective_rank",
    "explained_variance",
    "gather",
    "hubness",
    "isoscore",
    "local_isotropy",
    "mean_alignment",
    "mean_cosine",
    "mean_norm_ratio",
    "metric",
    "norms",
    "participation_ratio",
    "partition_dispersion",
    "partition_isotropy",
    "rogue_dimensions",
    "singular_values",
    "undefined",
    "uniformity",
]

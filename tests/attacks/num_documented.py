"""The errors that docs/metrics.md promises, as the table there states them.

`u` is the rounding of the sums: 2^-52, or 2^-23 where float32 rows are summed in float32. Each
entry is (what the table says, absolute bound from a `Case`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EPS = 2.0**-52
TINY = 5e-324


@dataclass
class Case:
    """What bounds depend on: the reference values, and facts about the rows."""

    u: float
    dtype_eps: float
    expected: object
    n_features: int
    cosine: float = 1.0
    singular: object = None
    drift: float = 1.0
    longest: float = 1.0
    fourth: float = 1.0


def _noise(case):
    values = np.asarray(case.singular, dtype=np.longdouble) ** 2
    d = case.n_features
    return max(8 * case.u * min(values.sum() / d**0.5, values[0]), d * EPS * values[0])


def _alignment(case):
    values = np.asarray(case.singular, dtype=np.longdouble) ** 2
    gap = values[0] - (values[1] if len(values) > 1 else 0)
    return 4 * _noise(case) / gap + 16 * case.u / case.drift


def _singular(case):
    values = np.asarray(case.singular, dtype=np.longdouble)
    worst = 1e-4 if case.u == EPS else 1e-2
    first = np.minimum(_noise(case) / values**2, worst)
    again = 16 * case.n_features * EPS * values[0]
    return values * first + again + 4 * TINY


def _partition(case):
    v = case.dtype_eps if case.longest < 1024 else EPS
    return 8 * v * case.longest + 64 * max(v, case.u)


ERRORS = {
    "mean_cosine": ("32 u", lambda c: 32 * c.u),
    "rogue_dimensions": ("64 u over the mean cosine", lambda c: 64 * c.u / abs(c.cosine)),
    "mean_norm_ratio": ("32 u", lambda c: 32 * c.u),
    "mean_alignment": ("4 noise / (λ₁ - λ₂) + 16 u / drift", _alignment),
    "isoscore": ("relative 16 u^0.6", lambda c: 16 * c.u**0.6 * abs(c.expected)),
    "participation_ratio": ("relative 64 u", lambda c: 64 * c.u * abs(c.expected)),
    "isoscore_unbiased": (
        "relative 16 u^0.6, times (n² tr C² + n Q) / |estimate|",
        lambda c: 16 * c.u**0.6 * abs(c.expected) * c.fourth,
    ),
    "explained_variance": ("64 u", lambda c: 64 * c.u),
    "singular_values": (
        "relative noise / λ, at most 1e-4 (float32 sums: 1e-2), plus 16 d 2^-52 σ₁",
        _singular,
    ),
    "effective_rank": (
        "relative 1e-4 (float32 sums: 1e-2)",
        lambda c: (1e-4 if c.u == EPS else 1e-2) * abs(c.expected),
    ),
    "log_partition_isotropy": ("8 v r + 64 v", _partition),
    "partition_isotropy": ("relative 8 v r + 64 v", lambda c: _partition(c) * abs(c.expected)),
    "partition_dispersion": (
        "relative 16 v r + 128 v",
        lambda c: 2 * _partition(c) * max(abs(c.expected), 1.0),
    ),
    "uniformity": ("256 · 2^-52", lambda c: 256 * EPS),
    "norms": ("relative 8 dtype", lambda c: 8 * c.dtype_eps * np.abs(c.expected) + 4 * TINY),
}

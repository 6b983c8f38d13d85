"""Norms of rows and of their mean, and how far the mean dominates."""

from __future__ import annotations

import numpy as np

from isotropy import linalg
from isotropy.linalg import Floats
from isotropy.metrics.base import Statistics, metric, undefined


@metric(
    summary="cosine of the mean with the top eigenvector of X'X, without sign",
    needs=("moments",),
    range=(0.0, 1.0),
    invariant=("rotation", "scale"),
    equation="|mean . u_1| / ||mean||",
    paper="too much in common, section 5.3",
    note="near one: the dominant direction is the common drift, and centring removes it",
)
def mean_alignment(statistics: Statistics) -> float:
    r"""Cosine, without sign, of the mean row with the top eigenvector of X'X, in [0, 1].

    Near one, the dominant direction of X is the drift of its mean. NaN where the mean is zero to
    rounding.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 8))
    >>> round(mean_alignment(X + 2), 3)
    1.0
    """
    length = float(np.linalg.norm(statistics.mean))
    moments = statistics.moments
    deviation = float(np.trace(statistics.scatter) / moments.weight) ** 0.5
    if length <= moments.resolution * deviation:
        return float("nan")
    return min(1.0, abs(float(statistics.mean @ statistics.gram[1][:, 0])) / length)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def _weighted_quantiles(values: Floats, weights: Floats | None) -> Floats:
    if weights is None or (weights == weights[0]).all():
        return np.quantile(values, QUANTILES)
    return np.quantile(values, QUANTILES, weights=weights, method="inverted_cdf")


@metric(
    summary="norm of the mean over the mean norm: how far the whole space has drifted",
    needs=("moments", "directions"),
    range=(0.0, 1.0),
    better="lower",
    invariant=("rotation", "scale"),
    equation="||mean(x)|| / mean(||x||)",
    paper="too much in common, table 1",
)
def mean_norm_ratio(statistics: Statistics) -> float:
    r"""Norm of the mean row over the mean norm, in [0, 1]; zero where there is no drift.

    Examples
    --------
    >>> import numpy as np
    >>> round(mean_norm_ratio(np.array([[3.0, 4.0], [3.0, -4.0]])), 6)
    0.6
    """
    directions = statistics.directions
    mean_norm = directions.scaled_mean_norm
    ratio = np.linalg.norm(statistics.mean) / mean_norm if mean_norm > 0 else np.nan
    ratio = linalg.scaled(ratio, directions.exponent - statistics.exponent)
    return float(np.minimum(ratio, 1))


@metric(
    summary="norms of rows: quantiles, shown as least / median / largest",
    needs=("directions", "sample"),
    range=(0.0, np.inf),
    invariant=("rotation",),
    equation="quantiles of ||x||",
    paper="too much in common, appendix C",
    note="quantiles are of a seeded sample of 5,000 rows where there are more",
)
def norms(statistics: Statistics) -> dict[str, float]:
    r"""Mean, minimum, maximum and 5, 25, 50, 75 and 95 % quantiles of the norms of rows.

    Mean, minimum and maximum are exact; the quantiles are those of a seeded sample of 5,000 rows
    if there are more. With weights that differ, a quantile is the least norm whose share of
    the weight reaches it.

    Examples
    --------
    >>> import numpy as np
    >>> norms(np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 3.0]]))["q50"]
    3.0
    """
    directions, sample = statistics.directions, statistics.sample
    with np.errstate(invalid="ignore"):  # between two that are infinite
        quantiles = _weighted_quantiles(linalg.lengths(sample.rows), sample.weights)
    found = {
        "mean": directions.mean_norm,
        "min": directions.norm_min,
        **{f"q{100 * q:02.0f}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)},
        "max": directions.norm_max,
    }
    if not np.isfinite(list(found.values())).all():
        nan = undefined("norms", "some are too large for float64")
        found = {name: value if np.isfinite(value) else nan for name, value in found.items()}
    return found

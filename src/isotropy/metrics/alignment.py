"""Whether the dominant direction is the drift of the mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from isotropy.metrics.base import Statistics, gather, record


def aligned(statistics: Statistics) -> float:
    length = float(np.linalg.norm(statistics.mean))
    moments = statistics.moments
    deviation = float(np.trace(statistics.scatter) / moments.weight) ** 0.5
    if length <= moments.resolution * deviation:
        return float("nan")
    return min(1.0, abs(float(statistics.mean @ statistics.gram[1][:, 0])) / length)


@record(
    summary="cosine of the mean with the top eigenvector of X'X, without sign",
    paper="too much in common, section 5.3",
    equation="|mean . u_1| / ||mean||",
    range=(0.0, 1.0),
    better="neither",
    invariant=("rotation", "scale"),
    needs=("moments",),
    evaluate=aligned,
    note="near one: the dominant direction is the common drift, and centring removes it",
)
def mean_alignment(X: Any, *, sample_weight: object = None) -> float:
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
    return aligned(gather(X, {"moments"}, sample_weight=sample_weight, caller="mean_alignment"))

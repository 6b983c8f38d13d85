"""IsoScore in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isotropy.errors import InputError
from isotropy.metrics.base import METRICS, Statistics, metric, undefined


def squared_traces(statistics: Statistics) -> tuple[float, float]:
    """(tr S)^2 - tr(S^2) and tr(S^2) of the covariance S.

    Where one direction dominates, the first would be the difference of two equal numbers: then
    it is 2 l t + t^2 - tr(R^2), with l the variance along that direction, R the covariance of the
    rest and t its trace.
    """
    S = statistics.scatter / statistics.moments.weight
    found = statistics.dominant
    if found is None:
        trace, square = float(np.trace(S)), float(np.square(S).sum())
        return trace**2 - square, square
    first = found.basis[:, 0]
    along, shared = float(found.products[0, 0]), found.cross[0]
    rest = max(float(found.rest) - float(shared @ shared) / along, 0.0) / found.weight
    along = (along + float(shared @ shared) / along) / found.weight
    left = S - np.outer(first, first @ S)
    left -= np.outer(left @ first, first)
    square = min(float(np.square(left).sum()), rest**2)
    return 2 * along * rest + rest**2 - square, along**2 + square


@metric(
    summary="fraction of dimensions used evenly by the covariance",
    needs=("moments", "traces"),
    range=(0.0, 1.0),
    better="higher",
    invariant=("rotation", "scale", "translation"),
    equation="(p - 1)/(d - 1), p = tr(C)^2 / ||C||_F^2",
    paper="Rudman et al. 2022",
    note="biased for small n: an isotropic Gaussian scores about n/(n + d)",
)
def isoscore(statistics: Statistics, unbiased: bool = False) -> float:
    r"""IsoScore of X in [0, 1]; one where every direction has the same variance.

    (p - 1)/(d - 1) with p = tr(C)^2 / ||C||_F^2, the participation ratio of the covariance C.

    Parameters
    ----------
    unbiased : bool
        Replace (tr C)^2 and tr(C^2) by their unbiased estimates, which assume no distribution.
        The ratio of the two can leave [0, 1] for few rows and is not clipped. Needs 4 rows.

    Notes
    -----
    The steps of Rudman et al. 2022 collapse to this form, which needs no decomposition. For n rows
    an isotropic Gaussian of d dimensions scores about n/(n + d); `unbiased` removes that with the
    estimators of Himeno and Yamada, Estimations for some functions of covariance matrix in high
    dimension under non-normality, 2014. NaN where all rows are equal or d is 1.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((50, 100))
    >>> round(isoscore(X), 2), round(isoscore(X, unbiased=True), 1)
    (0.32, 1.0)
    """
    d = statistics.n_features
    if d < 2:
        return float("nan")
    excess, square = squared_traces(statistics)
    if square == 0:
        return float("nan")
    if not unbiased:
        return excess / square / (d - 1)
    n = statistics.moments.count
    if n < 4:
        raise InputError(
            f"X must have at least 4 rows for unbiased=True, got {n:g}. Use unbiased=False."
        )
    # Theorem 1 of Himeno and Yamada 2014, Q their sum of fourth powers; of the difference of
    # their two estimates, of (tr C)^2 and of tr(C^2), only the plain one's is left.
    larger = (n / (n - 1)) ** 2
    excess, square = larger * excess, larger * square
    Q = statistics.moments.centred_fourth / statistics.moments.weight * n / (n - 1)
    estimate = (n - 1) * (n - 2) * square + (excess + square) - n * Q
    rounding = 16 * statistics.moments.resolution * ((n - 1) * (n - 2) * square + n * Q)
    if abs(estimate) <= rounding:
        return undefined("isoscore_unbiased", "the estimate of tr(C^2) is zero to rounding")
    return n * (n - 3) * excess / estimate / (d - 1)


METRICS["isoscore_unbiased"] = replace(
    isoscore.metric,
    name="isoscore_unbiased",
    summary="the same from unbiased estimates of (tr C)^2 and tr(C^2)",
    paper="Rudman et al. 2022; traces of Himeno and Yamada 2014",
    range=(-np.inf, np.inf),
    evaluate=lambda s: isoscore.of(s, unbiased=True) if s.moments.count >= 4 else float("nan"),
    note="a ratio of estimates: it can leave [0, 1] for few rows, and is not clipped; n >= 4",
)

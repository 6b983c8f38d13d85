"""Metrics of the eigenvalues: of the covariance, or of X itself."""

from __future__ import annotations

import numpy as np

from isotropy import checks, linalg
from isotropy.linalg import Floats
from isotropy.metrics.base import Statistics, metric, undefined
from isotropy.metrics.isoscore import squared_traces


def explained(statistics: Statistics, k: int, center: bool = True) -> Floats:
    """Cumulative shares of the first k principal components, of the centred rows or of X itself."""
    values = statistics.variances if center else statistics.gram[0]
    total = float(np.trace(statistics.scatter)) if center else float(values.sum())
    return np.cumsum(values[:k]) / total if total > 0 else np.full(len(values[:k]), np.nan)


def roots(statistics: Statistics) -> Floats:
    """Singular values in descending order, min(n, d) of them, of rows over 2^exponent."""
    values, _ = statistics.gram
    kept = min(statistics.moments.n_rows, statistics.n_features)
    result: Floats = np.sqrt(values[:kept])
    return result


@metric(
    summary="share of the variance that the first 1, 2, 3 principal components explain",
    needs=("moments",),
    evaluate=lambda statistics: explained(statistics, 3),
    range=(0.0, 1.0),
    better="lower",
    invariant=("rotation", "scale", "translation"),
    equation="EV_k = sum_{i<=k} lambda_i / sum_i lambda_i, lambda of the covariance",
    paper="isotropy layer paper, eq. 1",
)
def explained_variance(statistics: Statistics, k: int = 1, center: bool = True) -> float:
    r"""Share of the variance, in [k/d, 1], that the first k principal components explain.

    Parameters
    ----------
    k : int
        From 1 to n_features.
    center : bool
        Subtract the mean first. Otherwise lambda are the eigenvalues of X'X.

    Notes
    -----
    Eq. 1 of the isotropy layer paper, which prints it of the uncentred matrix: that is
    `center=False`. NaN where all rows are equal, or zero if they are not centred.

    Examples
    --------
    >>> import numpy as np
    >>> explained_variance(np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    0.8
    """
    k = checks.integer(k, "k", 1, statistics.n_features)
    return float(explained(statistics, k, center)[-1])


@metric(
    summary="number of directions that the variance is effectively spread over",
    needs=("moments",),
    range=(1.0, np.inf),
    better="higher",
    invariant=("rotation", "scale", "translation"),
    equation="p = tr(C)^2 / ||C||_F^2",
    paper="participation ratio, e.g. Rudman et al. 2022",
)
def participation_ratio(statistics: Statistics) -> float:
    r"""Participation ratio tr(C)^2 / ||C||_F^2 of the covariance, in [1, d].

    Examples
    --------
    >>> import numpy as np
    >>> participation_ratio(np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]]))
    2.0
    """
    excess, square = squared_traces(statistics)
    return 1 + excess / square if square > 0 else float("nan")


@metric(
    summary="singular values of X in descending order",
    needs=("moments", "spectrum"),
    center=True,
    range=(0.0, np.inf),
    invariant=("rotation",),
    equation="square roots of the eigenvalues of X'X",
    paper="too much in common, figure 1",
)
def singular_values(statistics: Statistics) -> Floats:
    r"""Singular values of X, or of the centred X, in descending order, min(n, d) of them.

    Notes
    -----
    From the eigenvalues of X'X, which one pass gives. Those that its rounding would blur, below
    about 1e-5 of the largest (1e-2 of a typical one for float32 rows by the million), are taken
    from a second pass over the rows, in float64; one below 1e-14 of the largest is given as zero.

    Examples
    --------
    >>> import numpy as np
    >>> singular_values(np.diag([3.0, 2.0]))
    array([3., 2.])
    """
    with np.errstate(over="ignore"):
        found: Floats = linalg.scaled(roots(statistics), -statistics.exponent)
    if np.isfinite(found).all():
        return found
    nan = undefined("singular_values", f"{(~np.isfinite(found)).sum()} are too large for float64")
    return np.where(np.isfinite(found), found, nan)


@metric(
    summary="exponential of the entropy of the normalised singular values of X",
    needs=("moments", "spectrum"),
    center=True,
    range=(1.0, np.inf),
    better="higher",
    invariant=("rotation", "scale"),
    equation="exp(-sum p log p), p = sigma / sum sigma",
    paper="Roy and Vetterli 2007",
)
def effective_rank(statistics: Statistics) -> float:
    r"""Effective rank of X, or of the centred X, in [1, min(n, d)]; NaN where X is zero.

    Examples
    --------
    >>> import numpy as np
    >>> round(effective_rank(np.eye(5)), 6), round(effective_rank(np.diag([1.0, 1e-9])), 6)
    (5.0, 1.0)
    """
    singular = roots(statistics)
    p = singular[singular > 0]
    if not len(p):
        return float("nan")
    p = p / p.sum()
    return float(np.exp(-(p @ np.log(p))))

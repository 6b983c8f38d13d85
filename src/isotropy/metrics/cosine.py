"""Cosines between all pairs of rows, exactly, from sums of unit rows."""

from __future__ import annotations

import numpy as np

from isotropy import linalg
from isotropy.linalg import Floats
from isotropy.metrics.base import Statistics, metric, undefined
from isotropy.stats import Directions

ALL_WEIGHT = 1e-12  # share of the pairs' weight in that of all, below which it is rounding
ROUNDINGS = 16  # of the sums of unit rows, within which a cosine lies of the true one


def pairs_of(directions: Directions) -> float:
    """Weight of all pairs of different rows; zero where one row has all the weight."""
    pairs = directions.weight**2 - directions.squared_weight
    return pairs if pairs > ALL_WEIGHT * directions.weight**2 else 0.0


@metric(
    summary="mean cosine over all pairs of rows",
    needs=("directions",),
    range=(-1.0, 1.0),
    better="nearer zero",
    invariant=("rotation", "scale"),
    equation="(||s||^2 - n)/(n (n - 1)), s = sum of unit rows",
    paper="Ethayarajh 2019",
    note="near zero does not mean isotropic: rows along one line through the origin score zero",
)
def mean_cosine(statistics: Statistics) -> float:
    r"""Mean cosine over all pairs of different rows, in [-1, 1]; exact, in one pass.

    (||s||^2 - n)/(n (n - 1)) with s the sum of unit rows; with weights
    (||s||^2 - sum w^2)/((sum w)^2 - sum w^2).

    Notes
    -----
    Zero rows have no direction and are left out. NaN with fewer than two other rows, or where one
    has all the weight.

    Examples
    --------
    >>> import numpy as np
    >>> mean_cosine(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 0.0]]))
    0.3333333333333333
    """
    directions = statistics.directions
    pairs = pairs_of(directions)
    total = linalg.to_numpy(directions.unit_sum)
    mean = (total @ total - directions.squared_weight) / pairs if pairs > 0 else np.nan
    return float(np.clip(mean, -1, 1))


@metric(
    summary="each dimension's share of the mean cosine",
    needs=("directions",),
    range=(-np.inf, np.inf),
    invariant=("scale",),
    equation="c_j / sum_j c_j, c_j = mean over pairs of u_j v_j",
    paper="Timkey and van Schijndel 2021",
    note="means little where the mean cosine is near zero, which it is divided by",
)
def rogue_dimensions(statistics: Statistics) -> Floats:
    r"""Share of the mean cosine that each dimension brings; the shares add up to one.

    Returns
    -------
    array of shape (n_features,)

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 8)) + [0, 0, 5, 0, 0, 0, 0, 0]
    >>> int(rogue_dimensions(X).argmax()), bool(rogue_dimensions(X).max() > 0.99)
    (2, True)
    """
    directions = statistics.directions
    pairs = pairs_of(directions)
    if pairs == 0:
        return np.full(statistics.n_features, np.nan)
    total = linalg.to_numpy(directions.unit_sum)
    parts: Floats = (total**2 - linalg.to_numpy(directions.unit_square_sum)) / pairs
    cosine: float = parts.sum()
    if cosine == 0:
        return np.full_like(parts, np.nan)
    size = float(total @ total + directions.squared_weight) / pairs
    if abs(cosine) <= ROUNDINGS * directions.resolution * size:
        why = "the mean cosine, of which dimensions have shares, is zero to rounding"
        return np.full_like(parts, undefined("rogue_dimensions", why))
    return parts / cosine

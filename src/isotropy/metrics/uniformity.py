"""How evenly the directions of rows cover the sphere."""

from __future__ import annotations

from typing import Any

import numpy as np

from isotropy import checks, linalg
from isotropy.linalg import Floats
from isotropy.metrics.base import SAMPLE_ROWS, Statistics, all_rows, gather, metric
from isotropy.metrics.cosine import ALL_WEIGHT
from isotropy.threads import over_blocks

SAMPLED_ROWS = 2000
BLOCK_ROWS = 256


def log_mean_potential(rows: Any, weights: Floats | None = None) -> float:
    """log of the mean of exp(-2 ||u - v||^2) over pairs of unit rows u, v."""
    if rows.shape[0] <= SAMPLE_ROWS:
        rows = linalg.double(rows)
    seen = linalg.nonzero_rows(rows)
    units = linalg.unit_rows(rows[linalg.index(seen, rows)])
    w = np.ones(len(seen)) if weights is None else weights[seen]
    w = w / w.max(initial=0.0) if len(w) else w
    pairs = w.sum() ** 2 - w @ w
    if pairs <= ALL_WEIGHT * w.sum() ** 2:
        return float("nan")
    xp, weight = linalg.namespace(units), linalg.like(w, units)
    n_rows = BLOCK_ROWS * (16 if checks.is_tensor(rows) else 1)

    def potential_of(start: int) -> float:
        part = slice(start, start + n_rows)
        potential = xp.exp(4 * (units[part] @ units[start:].T) - 4)  # ||u - v||^2 = 2 - 2 u.v
        ahead = linalg.double(potential @ (2 * weight[start:]))  # each pair of blocks once
        ahead -= linalg.double(potential[:, : ahead.shape[0]] @ weight[part])
        return float(linalg.double(weight[part]) @ ahead)

    starts = range(0, units.shape[0], n_rows)
    total = sum(over_blocks(potential_of, starts, rows))
    return float(np.log(max(total - float(w @ w), 0.0) / pairs)) if total > 0 else float("nan")


def sampled(statistics: Statistics) -> float:
    """Of all rows up to 5,000, of 2,000 sampled ones where there are more."""
    sample = statistics.sample
    kept = slice(None) if sample.complete else slice(SAMPLED_ROWS)
    assert sample.rows is not None
    rows = linalg.on_device(sample.rows[kept], statistics.device)
    return log_mean_potential(rows, None if sample.weights is None else sample.weights[kept])


@metric(
    summary="log mean Gaussian potential between directions of rows",
    needs=("sample",),
    evaluate=sampled,
    range=(-8.0, 0.0),
    better="lower",
    invariant=("rotation", "scale"),
    equation="log mean over pairs of exp(-2 ||u - v||^2), u and v unit rows",
    paper="Wang and Isola 2020",
    note="of a seeded sample of 2,000 rows where there are more than 5,000",
)
def uniformity(
    X: Any, exact: bool = False, *, sample_weight: object = None, random_state: int = 0
) -> float:
    r"""Uniformity log mean exp(-2 ||u - v||^2) over pairs of unit rows, in [-8, 0].

    Lower is more uniform; rows spread evenly over a sphere of many dimensions come near -4.

    Parameters
    ----------
    exact : bool
        Compare all pairs, in blocks, however many. Otherwise all pairs are compared up to 5,000
        rows and a seeded sample of 2,000 rows beyond that.

    Notes
    -----
    Eq. 2 of Wang and Isola 2020 with t = 2, over pairs of different rows. Zero rows are left out.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 64))
    >>> round(uniformity(X), 2), round(uniformity(X + 1), 2)
    (-3.87, -1.93)
    """
    if checks.flag(exact, "exact"):
        return log_mean_potential(*all_rows(X, sample_weight))
    return sampled(gather(X, {"sample"}, sample_weight=sample_weight, random_state=random_state))

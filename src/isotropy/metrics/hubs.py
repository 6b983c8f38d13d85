"""Hubs, rows that are near neighbours of many others, and antihubs, which are of none."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import skew

from isotropy import checks, linalg
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.metrics.base import Statistics, all_rows, gather, metric
from isotropy.threads import over_blocks

N_NEIGHBOURS = 10
BLOCK_ELEMENTS = 1 << 24
NOTE = "of a seeded sample of 5,000 rows where there are more; on request only"


def occurrences(rows: Any, weights: Floats | None = None, k: int = N_NEIGHBOURS) -> Floats:
    """How often each row is among the k most cosine-similar rows of another.

    Zero rows are left out; empty if there are fewer than two others.
    """
    if weights is not None and (weights != 1).any():
        raise InputError("X must have no weights; rows are compared as they are.")
    seen = linalg.nonzero_rows(rows)
    if len(seen) < 2:
        return np.empty(0)
    if checks.integer(k, "k", 1) >= len(seen):
        raise InputError(
            f"X must have more than {k} rows that are not zero, to find {k} neighbours of each, "
            f"got {len(seen)}. Give more rows, or in Python a smaller k."
        )
    units = linalg.unit_rows(rows[linalg.index(seen, rows)])
    xp, n = linalg.namespace(units), units.shape[0]
    n_rows = max(1, BLOCK_ELEMENTS // n)

    def count(start: int) -> Any:
        scores = units[start : start + n_rows] @ units.T
        own = linalg.index(np.arange(scores.shape[0]), units)
        scores[own, own + start] = -np.inf
        if checks.is_tensor(scores):
            found = linalg.to_numpy(scores.topk(k, dim=1).indices)
        else:
            found = xp.argpartition(-scores, k - 1, axis=1)[:, :k]
        return np.bincount(found.ravel(), minlength=n)

    found = over_blocks(count, range(0, n, n_rows), units)
    counts: Floats = np.sum(found, axis=0, dtype=np.float64)
    return counts


def skewness(counts: Floats) -> float:
    """Skewness of counts; NaN if they don't differ."""
    return float(skew(counts)) if len(counts) and counts.std() > 0 else float("nan")


def share_of_none(counts: Floats) -> float:
    """Share of counts that are zero."""
    return float((counts == 0).mean()) if len(counts) else float("nan")


def counted(X: Any, k: int, exact: bool, random_state: int) -> Floats:
    """How often each row is among the k nearest neighbours of another: of all, or of a sample."""
    if checks.flag(exact, "exact"):
        return occurrences(*all_rows(X, None), k)
    return sampled(gather(X, {"sample"}, random_state=random_state), k)


def sampled(statistics: Statistics, k: int = N_NEIGHBOURS) -> Floats:
    """The same of the sampled rows."""
    sample = statistics.sample
    assert sample.rows is not None
    return occurrences(linalg.on_device(sample.rows, statistics.device), sample.weights, k)


@metric(
    summary="skewness of how often rows are among the 10 nearest neighbours of others",
    needs=("sample",),
    on_request=public("hubness")(lambda statistics: skewness(sampled(statistics))),
    range=(-np.inf, np.inf),
    better="nearer zero",
    invariant=("rotation", "scale"),
    equation="skewness of N_k(x), how often x is among the k nearest of another row by cosine",
    paper="Radovanovic et al. 2010",
    note=NOTE,
)
def hubness(X: Any, k: int = N_NEIGHBOURS, exact: bool = False, *, random_state: int = 0) -> float:
    r"""Skewness of the k-occurrence of rows by cosine.

    Above about 1, a few rows ("hubs") are near neighbours of a large part of the others.

    Parameters
    ----------
    k : int
        Neighbours looked at, fewer than there are rows.
    exact : bool
        Compare all rows, in blocks, however many, in O(n^2 d). Otherwise all rows are compared up
        to 5,000, and a seeded sample of 5,000 beyond that.

    Notes
    -----
    Section 2 of Radovanovic et al. 2010. Zero rows are left out. NaN where every row occurs
    equally often, or there are fewer than two. The neighbours in a sample are further away than
    those among all rows, so compare only values of as many rows.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 64))
    >>> round(hubness(X), 2)
    0.19
    """
    return skewness(counted(X, k, exact, random_state))


@metric(
    summary="share of rows that are among the 10 nearest neighbours of no other row",
    needs=("sample",),
    on_request=public("antihubs")(lambda statistics: share_of_none(sampled(statistics))),
    range=(0.0, 1.0),
    better="lower",
    invariant=("rotation", "scale"),
    equation="share of rows x with N_k(x) = 0",
    paper="Radovanovic et al. 2010",
    note=NOTE,
)
def antihubs(X: Any, k: int = N_NEIGHBOURS, exact: bool = False, *, random_state: int = 0) -> float:
    r"""Share of rows that are among the k nearest neighbours of no other row, in [0, 1].

    A search by cosine that shows k results can hardly find them.

    Parameters
    ----------
    k, exact
        As in `hubness`.

    Notes
    -----
    Zero rows are left out. NaN if there are fewer than two others.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 64))
    >>> antihubs(X), antihubs(X + 1)
    (0.0, 0.078)
    """
    return share_of_none(counted(X, k, exact, random_state))

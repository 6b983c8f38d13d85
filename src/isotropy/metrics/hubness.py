"""Whether a few rows are the neighbours of too many others."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import skew

from isotropy import checks, linalg
from isotropy.engines import over_threads
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.metrics.base import all_rows, metric

BLOCK_ELEMENTS = 1 << 24


def occurrences(units: Any, k: int) -> Floats:
    """How often each row is among the k most cosine-similar rows of another."""
    xp, n = linalg.namespace(units), units.shape[0]
    rows = max(1, BLOCK_ELEMENTS // n)

    def count(start: int) -> Any:
        scores = units[start : start + rows] @ units.T
        own = linalg.index(np.arange(scores.shape[0]), units)
        scores[own, own + start] = -np.inf
        if checks.is_tensor(scores):
            found = linalg.to_numpy(scores.topk(k, dim=1).indices)
        else:
            found = xp.argpartition(-scores, k - 1, axis=1)[:, :k]
        return np.bincount(found.ravel(), minlength=n)

    counts: Floats = np.sum(over_threads(count, range(0, n, rows)), axis=0, dtype=np.float64)
    return counts


@metric(
    summary="skewness of how often rows are among the nearest neighbours of others",
    paper="Radovanovic et al. 2010",
    equation="skewness of N_k(x), the k-occurrence by cosine",
    range=(-np.inf, np.inf),
    better="nearer zero",
    invariant=("rotation", "scale"),
    note="compares all pairs: on request only",
)
def hubness(X: Any, k: int = 10) -> float:
    r"""Skewness of the k-occurrence of rows by cosine; exact, in blocks, O(n^2 d).

    Above about 1, a few rows ("hubs") are near neighbours of a large part of the others.

    Parameters
    ----------
    X : array, tensor, path or source of shape (n_samples, n_features)
    k : int
        Neighbours looked at, fewer than there are rows.

    Notes
    -----
    Zero rows are left out. NaN where every row occurs equally often, or there are fewer than
    two.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 64))
    >>> round(hubness(X), 2)
    0.19
    """
    rows, weights = all_rows(X, None)
    if weights is not None:
        raise InputError("X must have no weights; rows are compared as they are.")
    seen = linalg.nonzero_rows(rows)
    if len(seen) < 2:
        return float("nan")
    k = checks.integer(k, "k", 1, len(seen) - 1)
    counts = occurrences(linalg.unit_rows(rows[linalg.index(seen, rows)]), k)
    return float(skew(counts)) if counts.std() > 0 else float("nan")

"""Rows among their neighbours: hubs, and isotropy within clusters; computed on request only."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import skew

from isotropy import checks, linalg
from isotropy.engines import over_threads
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.metrics.base import METRICS, all_rows, gather, metric
from isotropy.repairs import ClusterRemoval
from isotropy.sources import MappedSource, as_source

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
    range=(-np.inf, np.inf),
    better="nearer zero",
    invariant=("rotation", "scale"),
    equation="skewness of N_k(x), the k-occurrence by cosine",
    paper="Radovanovic et al. 2010",
    note="compares all pairs: on request only",
)
def hubness(X: Any, k: int = 10) -> float:
    r"""Skewness of the k-occurrence of rows by cosine; exact, in blocks, O(n^2 d).

    Above about 1, a few rows ("hubs") are near neighbours of a large part of the others.

    Parameters
    ----------
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


@metric(
    summary="every other metric after each cluster was made zero-mean, over seeds",
    range=(-np.inf, np.inf),
    invariant=(),
    equation="metric of x - mean(cluster of x)",
    paper="cluster-based paper, table 1",
    note="clusters the rows once a seed: on request only",
)
def local_isotropy(
    X: Any,
    n_clusters: int = 9,
    *,
    n_seeds: int = 5,
    random_state: int = 0,
    sample_weight: object = None,
) -> dict[str, dict[str, Any]]:
    r"""Mean and spread over seeds of every metric after k-means and per-cluster centring.

    Parameters
    ----------
    n_clusters : int
        One cluster is plain centring.
    n_seeds : int
        Clusterings, seeded with random_state, random_state + 1, ...

    Returns
    -------
    dict
        For each metric {"mean": ..., "std": ...}; for one of several values, lists of them.

    Notes
    -----
    Table 1 of Rajaee and Pilehvar 2021, for all metrics that a pass or two give.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((600, 8))
    >>> X[:300] += 5
    >>> local = local_isotropy(X, 2, n_seeds=2)
    >>> abs(local["mean_cosine"]["mean"]) < 0.01
    True
    """
    n_seeds = checks.integer(n_seeds, "n_seeds", 1)
    random_state = checks.integer(random_state, "random_state", 0)
    source = as_source(X, sample_weight)
    runs = [_run(source, n_clusters, random_state + i) for i in range(n_seeds)]
    return {name: _spread([run[name] for run in runs]) for name in runs[0]}


def _run(source: Any, n_clusters: int, seed: int) -> dict[str, Any]:
    repair = ClusterRemoval(n_clusters, 0, random_state=seed)
    try:
        repair.fit(source)
    except InputError as error:
        error.caller = "local_isotropy"  # which is what was called
        raise
    centred = MappedSource(source, repair.transform, source.n_features)
    shown = [m for m in METRICS.values() if m.evaluate is not None]
    needs = {need for m in shown for need in m.needs}
    statistics = gather(centred, needs, random_state=seed)
    return {m.name: m.evaluate(statistics) for m in shown if m.evaluate is not None}


def _spread(values: list[Any]) -> dict[str, Any]:
    if isinstance(values[0], dict):
        return {name: _spread([value[name] for value in values]) for name in values[0]}
    stacked = np.array(values)
    return {"mean": stacked.mean(axis=0).tolist(), "std": stacked.std(axis=0).tolist()}

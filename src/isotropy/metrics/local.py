"""Isotropy within clusters; computed on request only."""

from __future__ import annotations

from typing import Any

import numpy as np

from isotropy import checks
from isotropy.errors import InputError
from isotropy.metrics.base import METRICS, gather, metric
from isotropy.repairs import ClusterRemoval
from isotropy.sources import MappedSource, as_source


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

"""k-means over any source: Lloyd over chunks, started from a sample."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from isotropy import linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, over_threads, reduce
from isotropy.linalg import Floats, one_blas_thread
from isotropy.sources import MappedSource, Source
from isotropy.stats import ClusterSums, Sample

ROWS_PER_CLUSTER = 256
N_STARTS = 3
SAMPLE_STEPS = 50
SOURCE_STEPS = 10
TOLERANCE = 1e-4


def kmeans(
    source: Source, n_clusters: int, random_state: int, checkpoint: Checkpoint | None = None
) -> Floats:
    """Centroids of shape (n_clusters, n_features), fewer if there are fewer distinct rows.

    The start is the best of a few k-means++ starts, run to the end on a sample of 256 rows per
    cluster; Lloyd's steps over the whole source follow. Deterministic for a given `random_state`.
    """
    size = max(1000, ROWS_PER_CLUSTER * n_clusters)
    (sample,) = reduce(source, [Sample(size, random_state)], checkpoint).states
    random = np.random.default_rng(random_state)
    assert sample.rows is not None
    assert sample.weights is not None
    exponent = unit_of(sample.rows)
    rows, weights = linalg.scaled(sample.rows, exponent), sample.weights

    def run(start: Floats) -> tuple[Floats, float]:
        return lloyd(lambda c: ClusterSums(c).update(rows, weights), start, SAMPLE_STEPS)

    with one_blas_thread():  # the products are too small to be worth more
        starts = [plus_plus(rows, weights, n_clusters, random) for _ in range(N_STARTS)]
    centroids, _ = min(over_threads(run, starts), key=lambda found: found[1])
    if not sample.complete:
        near_one = over(source, exponent)

        def step(c: Floats) -> ClusterSums:
            return reduce(near_one, [ClusterSums(c)], checkpoint).states[0]

        centroids, _ = lloyd(step, centroids, SOURCE_STEPS)
    found: Floats = linalg.scaled(centroids, -exponent)
    return found


def unit_of(rows: Array) -> int:
    """Power of two by which rows must be divided for their squares to be floats; usually zero."""
    exponent = linalg.exponent_of(linalg.largest(rows))
    return exponent if abs(exponent) > linalg.USUAL else 0


def over(source: Source, exponent: int) -> Source:
    """The rows of a source divided by 2^exponent."""
    if exponent == 0:
        return source
    divided = functools.partial(linalg.scaled, exponent=exponent)
    return MappedSource(source, divided, source.n_features)


def lloyd(
    step: Callable[[Floats], ClusterSums], centroids: Floats, n_steps: int
) -> tuple[Floats, float]:
    """(centroids, inertia before their last move) after at most n_steps of Lloyd's algorithm.

    Stops when a step lowers the inertia by less than 1e-4 of it.
    """
    inertia = np.inf
    for _ in range(n_steps):
        sums = step(centroids)
        centroids = sums.means
        if sums.inertia > (1 - TOLERANCE) * inertia:
            inertia = sums.inertia
            break
        inertia = sums.inertia
    return centroids, float(inertia)


def plus_plus(
    rows: np.ndarray, weights: Floats, n_clusters: int, random: np.random.Generator
) -> Floats:
    """Greedy k-means++ seeds: each is the best of a few drawn by squared distance."""
    chosen_from, rows = rows, rows - rows.mean(0, dtype=np.float64).astype(rows.dtype)
    n_candidates = 2 + int(np.log(n_clusters))
    chosen = [int(random.choice(len(rows), p=weights / weights.sum()))]
    squared = linalg.squared_norms(rows)
    distances = _distances(rows, squared, chosen)[0]
    while len(chosen) < n_clusters:
        potential = np.cumsum(weights * distances)
        if potential[-1] <= 0:
            break  # fewer distinct rows than clusters
        drawn = np.searchsorted(potential, random.random(n_candidates) * potential[-1])
        drawn = np.minimum(drawn, len(rows) - 1)
        nearer = np.minimum(distances, _distances(rows, squared, drawn))
        best = int(np.argmin(nearer @ weights))
        chosen.append(int(drawn[best]))
        distances = nearer[best]
    return np.asarray(chosen_from[chosen], dtype=np.float64)


def _distances(rows: np.ndarray, squared: np.ndarray, chosen: object) -> Floats:
    """Squared distances of the chosen rows to all, of shape (n_chosen, n_rows)."""
    picked = np.asarray(chosen)
    products = (rows @ rows[picked].T).T  # the larger factor first is faster
    d = squared[picked, None] + squared - 2 * products
    d[np.arange(len(picked)), picked] = 0
    # what is left of two equal rows is rounding, not distance
    noise = 64 * np.finfo(rows.dtype).eps * (squared[picked, None] + squared)
    return np.where(d > noise, d, 0.0).astype(np.float64)

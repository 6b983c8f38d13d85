"""k-means over any source: Lloyd over chunks, started from a sample."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from isotropy import linalg
from isotropy.checks import Array, is_tensor
from isotropy.engines import Checkpoint, reduce
from isotropy.linalg import Floats
from isotropy.sources import MappedSource, Source
from isotropy.stats import ClusterSums, Sample
from isotropy.stats.clusters import EXACT_SUMS
from isotropy.threads import one_blas_thread, over_threads, shared_threads

ROWS_PER_CLUSTER = 256
N_STARTS = 3
FIRST_STEPS = 10  # of every start; the best one goes on
SAMPLE_STEPS = 50
SOURCE_STEPS = 10
TOLERANCE = 1e-4
MOST_PARTS = 16  # of a sample, whose sums are made by threads
PART_ELEMENTS = 1 << 18  # at least, of a part
SUM_ELEMENTS = 1 << 23  # of the sums of all parts, unless there is but one
SCORE_ELEMENTS = 1 << 20  # of a part's scores that are made at a time
ON_DEVICE = 256  # times as many there

Sums = tuple[Array, Array, Array]
InThreads = Callable[[Callable[[slice], Any], list[slice]], list[Any]]  # see shared_threads


def kmeans(
    source: Source, n_clusters: int, random_state: int, checkpoint: Checkpoint | None = None
) -> Floats:
    """Centroids of shape (n_clusters, n_features), fewer if there are fewer distinct rows.

    A few k-means++ starts take their first steps on a sample of 256 rows per cluster, and the best
    of them runs to the end there; Lloyd's steps over the whole source follow. Deterministic for a
    given `random_state`.
    """
    size = max(1000, ROWS_PER_CLUSTER * n_clusters)
    done = reduce(source, [Sample(size, random_state)], checkpoint)
    (sample,) = done.states
    assert sample.rows is not None
    assert sample.weights is not None
    exponent = unit_of(sample.rows)
    rows = linalg.on_device(linalg.scaled(sample.rows, exponent), done.device)
    centroids = of_sample(rows, sample.weights, n_clusters, np.random.default_rng(random_state))
    if not sample.complete:
        near_one = over(source, exponent)

        def step(c: Floats) -> tuple[Floats, Floats]:
            sums = reduce(near_one, [ClusterSums(c[0])], checkpoint).states[0]
            return sums.means[None], np.array([sums.inertia])

        centroids = lloyd(step, centroids[None], SOURCE_STEPS)[0][0]
    found: Floats = linalg.scaled(centroids, -exponent)
    return found


def of_sample(rows: Array, weights: Floats, n_clusters: int, random: np.random.Generator) -> Floats:
    """Centroids of rows that are in memory: on the CPU or on a device, where all work is done."""
    middle = linalg.like(linalg.column_sums(rows) / rows.shape[0], rows)
    apart = rows - middle
    exponent = unit_of(apart)
    weights = linalg.scaled(weights, linalg.exponent_of(float(weights.max())))
    apart = linalg.scaled(apart, exponent)
    # one BLAS thread: products over blocks are the same for any number of threads
    with one_blas_thread(), shared_threads(1 if is_tensor(rows) else MOST_PARTS) as threads:
        sample = Points(apart, linalg.place(weights, rows), N_STARTS * n_clusters, threads)
        starts = sample.rows[plus_plus(sample, n_clusters, random)]
        centroids, inertia = lloyd(sample.step, linalg.double(starts), FIRST_STEPS)
        best = slice(int(np.argmin(inertia)), int(np.argmin(inertia)) + 1)
        n_left = SAMPLE_STEPS - FIRST_STEPS
        centroids, _ = lloyd(sample.step, centroids[best], n_left, inertia[best])
    found: Floats = linalg.scaled(linalg.to_numpy(centroids[0]), -exponent)
    found += linalg.to_numpy(linalg.double(middle))
    return found


class Points:
    """Weighted rows about their mean, for steps of several clusterings at once.

    They have at most `n_centroids` centroids together. `in_threads` runs work on parts of the rows.
    """

    def __init__(
        self, rows: Array, weights: Array, n_centroids: int, in_threads: InThreads = over_threads
    ) -> None:
        self.rows, self.weights, self.in_threads = rows, weights, in_threads
        self.squared = linalg.squared_norms(rows)
        n, d = rows.shape
        n_parts = max(1, min(MOST_PARTS, SUM_ELEMENTS // (n_centroids * d)))
        height = n if is_tensor(rows) else max(-(-n // n_parts), PART_ELEMENTS // d)
        self.parts = linalg.slices(n, height)

    def step(self, centroids: Array) -> tuple[Array, Floats]:
        """(centroids after a step of Lloyd's, inertia before it) of each of several clusterings.

        `centroids` has the shape (n_clusterings, n_clusters, n_features); an empty cluster keeps
        its centroid.
        """
        found = self.in_threads(lambda part: self._sums_of(centroids, part), self.parts)
        weight, total, inertia = added(found)
        xp, there = linalg.namespace(weight), weight > 0
        means = total / xp.where(there, weight, xp.ones_like(weight))
        return xp.where(there, means, centroids), linalg.to_numpy(inertia)

    def _sums_of(self, centroids: Array, part: slice) -> Sums:
        """`_sums` over a part of any size: its scores are too many to be made at once."""
        n_sets, n_clusters, _ = centroids.shape
        n_scores = SCORE_ELEMENTS * (ON_DEVICE if is_tensor(self.rows) else 1)
        height = max(1, n_scores // (n_sets * n_clusters))
        starts = range(part.start, part.stop, height)
        blocks = (slice(start, min(start + height, part.stop)) for start in starts)
        return added(self._sums(centroids, block) for block in blocks)

    def _sums(self, centroids: Array, part: slice) -> Sums:
        """Weight and sum of the rows of each cluster, and the inertia, over a part of the rows."""
        xp, rows, weights = linalg.namespace(centroids), self.rows[part], self.weights[part]
        n_sets, n_clusters, d = centroids.shape
        C = linalg.like(xp.reshape(centroids, (-1, d)), rows)
        scores = rows @ C.T
        scores -= linalg.squared_norms(C) / 2
        scores = xp.reshape(scores, (-1, n_sets, n_clusters))
        labels = xp.argmax(scores, axis=2)
        best = xp.max(scores, axis=2)
        distances = xp.clip(self.squared[part][:, None] - 2 * best, 0, None)
        if self.rows.shape[0] * n_clusters * d < EXACT_SUMS:
            rows = linalg.double(rows)
        w = linalg.like(weights, rows)
        weight, total = linalg.label_sums(rows, labels, n_clusters, w)
        return weight[:, :, None], total, weights @ linalg.double(distances)


def added(parts: Iterable[Sums]) -> Sums:
    """The sums of all parts, one after the other."""
    return functools.reduce(lambda one, other: tuple(map(operator.add, one, other)), parts)


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
    step: Callable[[Array], tuple[Array, Floats]],
    centroids: Array,
    n_steps: int,
    inertia: Any = np.inf,
) -> tuple[Array, Any]:
    """(centroids, inertia before their last move) after at most n_steps of Lloyd's algorithm.

    There may be several clusterings, each with its inertia. They stop when a step lowers none of
    these by more than 1e-4 of it.
    """
    for _ in range(n_steps):
        before = inertia
        centroids, inertia = step(centroids)
        if (inertia >= (1 - TOLERANCE) * before).all():
            break
    return centroids, inertia


def plus_plus(sample: Points, n_clusters: int, random: np.random.Generator) -> Array:
    """Row numbers of greedy k-means++ seeds, of shape (n_starts, n_seeds), for a few starts.

    Each seed is the best of a few drawn by squared distance. Nothing is copied from a device until
    the end.
    """
    xp, n = linalg.namespace(sample.rows), sample.rows.shape[0]
    n_candidates = 2 + int(np.log(n_clusters))
    draws = linalg.place(
        random.random((N_STARTS, 1 + (n_clusters - 1) * n_candidates)), sample.rows
    )
    sets = linalg.count(N_STARTS, sample.rows)
    distances = linalg.zeros((N_STARTS, n), sample.rows) + 1
    chosen, totals = [], []
    for first in [0, *range(1, draws.shape[1], n_candidates)]:
        drawn = draws[:, first : first + n_candidates if first else 1]
        potential = xp.cumulative_sum(sample.weights * distances, axis=1)
        totals.append(potential[:, -1])
        places = [
            xp.searchsorted(*pair, side="left" if first else "right")
            for pair in zip(potential, drawn * potential[:, -1:], strict=True)
        ]
        candidates = xp.clip(xp.stack(places), None, n - 1)
        nearer = _distances(sample, candidates)
        if first:
            nearer = xp.minimum(distances[:, None], nearer)
        best = xp.argmin(nearer @ sample.weights, axis=1)
        chosen.append(candidates[sets, best])
        distances = nearer[sets, best]
    # the distances are all zero once there are no more distinct rows
    found = linalg.to_numpy(xp.stack(totals) > 0).sum(axis=0)
    most = int(found.max())
    return xp.stack(chosen, axis=1)[linalg.index(np.flatnonzero(found == most), sets), :most]


def _distances(sample: Points, chosen: Array) -> Array:
    """Squared distances of chosen rows to all, of the shape of `chosen` and one axis more."""
    xp, rows, squared = linalg.namespace(sample.rows), sample.rows, sample.squared
    picked = xp.reshape(chosen, (-1,))
    other = rows[picked].T
    products = xp.concat(sample.in_threads(lambda part: rows[part] @ other, sample.parts)).T
    both = squared[picked][:, None] + squared
    d = both - 2 * products
    # what is left of two equal rows is rounding, not distance
    d = xp.where(d > 64 * xp.finfo(rows.dtype).eps * both, d, xp.zeros_like(d))
    d[linalg.count(picked.shape[0], picked), picked] = 0
    return xp.reshape(linalg.double(d), (*chosen.shape, -1))

"""Moments of parts of the rows: of every cluster, of stripes, and rows beyond a bound."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg, stored
from isotropy.checks import Array, is_tensor
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic
from isotropy.stats.moments import Moments, exact_products
from isotropy.stored import HALF_THE_DIGITS, Field
from isotropy.threads import one_blas_thread, over_blocks

EXACT_SUMS = 1 << 24  # multiply-adds an update may spend on float64 sums of float32 rows
GATHERED = 1 << 21  # elements of a cluster's rows that a thread gathers at a time
GATHERED_ON_DEVICE = 1 << 27
MOST_SPANS = 16  # that a cluster's rows of an update are split into
LEAST_SPAN = 2048  # rows of one: more work than joining their sums


class _PerCluster(Statistic):
    settings = ("centroids",)
    fields = {"centroids": Field("n_clusters, n_features")}

    def __init__(self, centroids: Array) -> None:
        self.centroids: Floats = np.asarray(centroids, dtype=np.float64)
        if self.centroids.ndim != 2:
            raise InputError(f"centroids must be 2D, got {self.centroids.ndim}D.")


@public
class ClusterSums(_PerCluster):
    """Weight and sum of the rows nearest to each centroid, and the inertia: a step of k-means.

    Examples
    --------
    >>> import numpy as np
    >>> sums = ClusterSums(np.array([[0.0], [10.0]])).update(np.array([[1.0], [9.0], [11.0]]))
    >>> sums.weight, sums.means.ravel(), sums.inertia
    (array([1., 2.]), array([ 1., 10.]), 3.0)
    """

    fields = {
        **_PerCluster.fields,
        "weight": Field("n_clusters", low=0),
        "total": Field("n_clusters, n_features"),
        "inertia": Field(low=0),
    }
    weighted = ("weight", "total", "inertia")

    def __init__(self, centroids: Array) -> None:
        super().__init__(centroids)
        self.weight: Floats = np.zeros(len(self.centroids))
        self.total: Floats = np.zeros_like(self.centroids)  # of x - origin
        self.inertia = 0.0

    @property
    def origin(self) -> Floats:
        """Point about which rows are summed."""
        middle: Floats = self.centroids.mean(0).astype(np.float32).astype(np.float64)
        return middle

    @property
    def means(self) -> Floats:
        """Mean of each cluster's rows; an empty cluster keeps its centroid."""
        weight = np.where(self.weight > 0, self.weight, 1)[:, None]
        means = self.origin + self.total / weight
        kept: Floats = np.where(self.weight[:, None] > 0, means, self.centroids)
        return kept

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        xp = linalg.namespace(X)
        centroids = linalg.like(self.centroids - self.origin, X)
        exact = X.shape[0] * self.centroids.size < EXACT_SUMS
        origin, n_clusters = linalg.like(self.origin, X), len(self.centroids)
        sums = [linalg.zeros(shape, X) for shape in (self.weight.shape, self.total.shape, ())]
        for _, rows, weight in linalg.blocks(X, w, on_host=2):
            Y = linalg.shifted(rows, origin)
            labels, distances = linalg.nearest_about(Y, centroids)
            Y = double(Y) if exact else Y
            weight = linalg.like(xp.ones_like(distances) if weight is None else weight, Y)
            weights, totals = linalg.label_sums(Y, labels, n_clusters, weight)
            sums[0] += weights
            sums[1] += totals
            sums[2] += (double(distances) * double(weight)).sum()
        weight, total, inertia = map(linalg.to_numpy, sums)
        self.weight, self.total = self.weight + weight, self.total + total
        self.inertia += float(inertia)


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of those sorted by cluster, and the moments that they are added to."""

    cluster: int
    start: int
    stop: int
    moments: Moments


@public
class ClusterMoments(_PerCluster):
    """The `Moments` of the rows nearest to each centroid.

    Parameters
    ----------
    centroids : array of shape (n_clusters, n_features)
        Each cluster's moments are summed about its centroid.

    Notes
    -----
    Products of float32 rows are float64 in updates of less than 2^31 multiply-adds for all clusters
    together, otherwise float32 within a block: see `Moments`.

    An update spreads its rows over threads by cluster, so that there is one matrix of products for
    each cluster, whatever the number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1.0, 0.0], [9.0, 0.0], [11.0, 2.0]])
    >>> moments = ClusterMoments(np.array([[0.0, 0.0], [10.0, 0.0]])).update(rows)
    >>> [cluster.n_rows for cluster in moments.clusters]
    [1, 2]
    >>> moments.clusters[1].mean
    array([10., 1.])
    """

    weighted = ("clusters",)  # see _multiply
    threaded = True

    def __init__(self, centroids: Array) -> None:
        super().__init__(centroids)
        self.clusters = [Moments(origin) for origin in self.centroids]

    @property
    def n_rows(self) -> int:
        """Rows of all clusters."""
        return sum(cluster.n_rows for cluster in self.clusters)

    def __copy__(self) -> Self:
        other = type(self)(self.centroids)
        other.clusters = [copy.copy(cluster) for cluster in self.clusters]
        return other

    def to_host(self) -> Self:
        there = [cluster for cluster in self.clusters if is_tensor(cluster.within)]
        if there:  # one large copy takes a fraction of many small ones
            stack = linalg.namespace(there[0].within).stack([c.within for c in there])
            for cluster, within in zip(there, linalg.to_numpy(stack), strict=True):
                cluster.within = within
        for cluster in self.clusters:
            cluster.to_host()
        return self

    def state(self) -> dict[str, NDArray[Any]]:
        state = {"centroids": self.centroids.copy()}
        for i, cluster in enumerate(self.clusters):
            state |= {f"{i}.{name}": value for name, value in cluster.state().items()}
        return state

    @classmethod
    def from_state(cls, state: dict[str, NDArray[Any]]) -> Self:
        centroids = np.asarray(state.get("centroids", 0))
        n_clusters = len(centroids) if centroids.ndim == 2 else 0
        moments = {f"{i}.{k}": v for i in range(n_clusters) for k, v in Moments.fields.items()}
        stored.check(state, cls.fields | moments)
        self = cls(state["centroids"])
        self.clusters = [
            Moments.from_state(
                {k: state[f"{i}.{k}"] for k in Moments.fields if f"{i}.{k}" in state}
            )
            for i in range(n_clusters)
        ]
        return self

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        centroids, exact = linalg.like(self.centroids, X), exact_products(*X.shape)
        xp, n_clusters, tensor = linalg.namespace(X), len(self.clusters), is_tensor(X)
        blocks = [rows for _, rows, _ in linalg.blocks(X, on_host=2)]
        with one_blas_thread():  # also where there is one block: the same sums for any threads
            found = over_blocks(lambda rows: linalg.nearest_label(rows, centroids), blocks, X)
            order, bounds = linalg.by_label(xp.concat(found), n_clusters)
            spans = self._spans(bounds, 1 if tensor else MOST_SPANS)
            height = max(1, (GATHERED_ON_DEVICE if tensor else GATHERED) // X.shape[1])

            def blocks_of(span: Span) -> Iterator[tuple[Array, Array | None]]:
                for start in range(span.start, span.stop, height):
                    part = order[start : min(start + height, span.stop)]
                    own = None if w is None else linalg.place(w[linalg.to_numpy(part)], X)
                    yield linalg.gathered(X, part), own

            def add(span: Span) -> None:
                span.moments.add_blocks(blocks_of(span), X, exact)

            longest_first = sorted(spans, key=lambda span: span.start - span.stop)
            over_blocks(add, longest_first, X)
        for span in spans:
            if span.moments is not self.clusters[span.cluster]:
                self.clusters[span.cluster].merge(span.moments)

    def _spans(self, bounds: NDArray[np.int64], most: int) -> list[Span]:
        """Consecutive rows of one cluster: all of them, or equal parts of a large cluster's.

        They don't depend on the number of threads, and neither do the sums.
        """
        n_least = max(-(-int(bounds[-1]) // most), LEAST_SPAN)
        spans = []
        for i, (start, stop) in enumerate(pairwise(map(int, bounds))):
            n_parts = max(1, (stop - start) // n_least) if stop > start else 0
            cuts = [start + (stop - start) * part // n_parts for part in range(n_parts)]
            for part, (first, last) in enumerate(pairwise([*cuts, stop])):
                moments = Moments(self.centroids[i]) if part else self.clusters[i]
                spans.append(Span(i, first, last, moments))
        return spans

    def _multiply(self, factor: float) -> None:
        for cluster in self.clusters:
            cluster._multiply(factor)

    def _merge(self, other: ClusterMoments) -> None:
        for mine, theirs in zip(self.clusters, other.clusters, strict=True):
            mine.merge(theirs)


class StripedMoments(Moments):
    """Moments of every other stripe of `height` rows, from the first (0) or second (1) on."""

    numbers_rows = True
    fields = {
        "height": Field(kind="int", low=1),
        "start": Field(kind="int", low=0, high=1),
        **Moments.fields,
    }

    settings = ("height", "start", "origin", "exact")

    def __init__(
        self, height: int, start: int, origin: Array | None = None, exact: bool | None = None
    ) -> None:
        super().__init__(origin, exact)
        self.height, self.start = height, start

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        numbers = first_row + np.arange(X.shape[0]) if np.ndim(first_row) == 0 else first_row
        mine = numbers // self.height % 2 == self.start
        rows = np.flatnonzero(mine if w is None else mine & (w > 0))
        if len(rows):
            weights = None if w is None else w[rows]
            super()._update(X[linalg.index(rows, X)], weights, first_row)


class Outliers(Statistic):
    """Weight of the rows whose distance from a centre is above a bound."""

    fields = {
        "center": Field("n_features"),
        "bound": Field(low=0, infinite=True),
        "weight": Field(low=0),
        "outside": Field(low=0),
    }
    settings = ("center", "bound")
    weighted = ("weight", "outside")

    def __init__(self, center: Array, bound: float) -> None:
        self.center: Floats = np.asarray(center, dtype=np.float64)
        self.bound = bound
        self.weight = self.outside = 0.0

    def _check_state(self) -> None:
        if self.outside > self.weight * (1 + HALF_THE_DIGITS):
            raise InputError(f"outside must be a part of weight {self.weight:g}, got more")

    @property
    def share(self) -> float:
        """Share of the weight that is outside."""
        return self.outside / self.weight

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        center = linalg.like(self.center, X)
        for _, rows, weight in linalg.blocks(X, w):
            outside = linalg.double(linalg.lengths(rows - center) > self.bound)
            self.outside += float(outside.sum() if weight is None else outside @ weight)
        self.weight += float(X.shape[0] if w is None else w.sum())

"""Subtract the mean and the dominant directions: of all rows, or of each row's own cluster."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from isotropy import checks, lapack, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, Reduced, reduce
from isotropy.errors import InputError, NotAffineError, public, warn
from isotropy.kmeans import kmeans, over, unit_of
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Repair, SummedRepair
from isotropy.repairs.drift import held_out
from isotropy.repairs.steps import RemoveByCluster, Step
from isotropy.sources import Source
from isotropy.stats import BlockSums, ClusterMoments, Moments
from isotropy.stored import Field
from isotropy.threads import over_threads

Side = Literal["top", "bottom"]
SIDES = ("top", "bottom")
STACKED = 1 << 28  # numbers of the matrices that a device holds at a time: 2 GB
MERGED_AT_ONCE = 4  # runs of clusters merged side by side, each into one matrix


@dataclass(eq=False, repr=False)
class AllButTheTop(SummedRepair):
    r"""Subtract the mean, then the projections on the first principal components.

    y = x - mean; the result is y - sum_j (u_j.y) u_j over the D directions of most variance.

    Parameters
    ----------
    n_components : int or None
        D; None is ceil(n_features / 100). Zero only centres. At most n_features - 1.
    side : {"top", "bottom"}
        "bottom" removes the D directions of least variance instead; where rows span fewer
        dimensions than there are features, those without variance are among the D.
    centered : bool
        Whether u_j is multiplied with the centred row y, as above. With False it is multiplied
        with x itself, which brings back the mean's part along u_j, with the other sign.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    components_ : array of shape (n_removed, n_features)
        Removed directions. Directions without variance are never removed, nor is the last one
        with variance, so there may be fewer than `n_components`.

    Notes
    -----
    Eq. 9 to 11 of Bis, Podkorytov and Liu 2021, where the centred vector is projected, because
    that was found to work better. In Mu and Viswanath, All-but-the-top, 2018, the uncentred one
    is, as with `centered=False`. Affine.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[9.0, 1.0], [-9.0, 1.0], [9.0, 3.0], [-9.0, 3.0]])
    >>> AllButTheTop(1).fit_transform(X) + 0.0
    array([[ 0., -1.], [ 0., -1.], [ 0., 1.], [ 0., 1.]])
    """

    name = "all-but-the-top"
    learned = {
        "mean_": Field("n_features"),
        "components_": Field("n_removed, n_features", orthonormal=True),
    }
    statistic = Moments

    n_components: int | None = None
    side: Side = "top"
    normalize: bool = False
    centered: bool = True

    def _check_params(self) -> None:
        super()._check_params()
        checks.choice(self.side, "side", SIDES)
        checks.flag(self.centered, "centered")
        if self.n_components is not None:
            checks.integer(self.n_components, "n_components", 0)

    def _check_fitted(self) -> None:
        expect_removed(len(self.components_), self.n_components, self.n_features_in_)

    def solve(self, statistic: Moments) -> None:
        name = type(self).__name__
        n_removed = n_directions(self.n_components, self.n_features_in_, name)
        self.mean_ = statistic.mean
        self.components_ = directions(statistic, n_removed, self.side)

    def apply(self, rows: Array, out: Array) -> None:
        mean, components = like(self.mean_, rows), like(self.components_, rows)
        remove(rows, mean, components, out)
        if not self.centered:
            out -= (mean @ components.T) @ components

    def affine_form(self) -> tuple[Floats, Floats]:
        A = np.eye(self.n_features_in_) - self.components_.T @ self.components_
        return A, -(A @ self.mean_ if self.centered else self.mean_)


def n_directions(n_components: int | None, n_features: int, name: str) -> int:
    """How many directions the repair of that name removes: ceil(d/100) for None, at most d - 1."""
    if n_components is None:
        return min(math.ceil(n_features / 100), n_features - 1)
    wanted = checks.integer(n_components, "n_components", 0)
    if wanted >= n_features:
        warn(
            f"{name}: n_components={wanted} would leave nothing of {n_features} features; only "
            f"{n_features - 1} directions are removed."
        )
    return min(wanted, n_features - 1)


def expect_removed(n_removed: int, n_components: int | None, n_features: int) -> None:
    """Raise if a file holds more directions than its parameters ask for."""
    asked = math.ceil(n_features / 100) if n_components is None else n_components
    most = min(asked, n_features - 1)
    if n_removed > most:
        raise InputError(f"components_ must have at most {most} directions, got {n_removed}")


def directions(moments: Moments, n_components: int, side: str) -> Floats:
    """Principal directions to remove, as rows of a matrix; possibly fewer than asked for."""
    scatter = moments.at_unit_scale.scatter
    d = len(scatter)
    if n_components == 0:
        return np.zeros((0, d))
    ends = (d - n_components, d - 1) if side == "top" else (0, n_components - 1)
    with linalg.threads_for(d):
        values, vectors = lapack.eigh_between(scatter, *ends)
    if side == "top":
        values, vectors = values[::-1], vectors[:, ::-1]
    return removable(moments, values, vectors)


def removable(moments: Moments, values: Floats, vectors: Floats) -> Floats:
    """Those of the first directions that can be removed, as rows of a matrix.

    Directions without variance are left out, though at the bottom they count as the least ones. So
    is the last one with variance: removing it would turn every row into zero.
    """
    trace = float(np.trace(moments.at_unit_scale.scatter))
    eps = float(np.finfo(np.float64).eps)
    noise = max(len(vectors) * eps, 4 * moments.resolution / len(vectors) ** 0.5) * trace
    removed = np.flatnonzero(values > noise)
    if len(removed) and trace - float(values[removed].sum()) <= noise:
        removed = removed[:-1]
    return vectors[:, removed].T


def cluster_directions(
    clusters: list[Moments], n_components: int, side: str, device: str
) -> list[Floats]:
    """`directions` of every cluster, made on the device where the rows are."""
    found: dict[int, Floats] = {}
    if device != "cpu" and side == "top" and n_components:
        n_features = len(clusters[0].mean)
        height = max(1, STACKED // n_features**2)
        for start in range(0, len(clusters), height):
            group = clusters[start : start + height]
            scatters = [linalg.on_device(c.at_unit_scale.scatter, device) for c in group]
            stack = linalg.namespace(scatters[0]).stack(scatters)
            values, vectors, good = linalg.leading(stack, n_components)
            pairs = zip(map(linalg.to_numpy, values), map(linalg.to_numpy, vectors), strict=True)
            for i, pair in enumerate(pairs):
                if good[i]:
                    found[start + i] = removable(group[i], *pair)
    left = [i for i in range(len(clusters)) if i not in found]
    made = over_threads(lambda i: directions(clusters[i], n_components, side), left)
    found |= dict(zip(left, made, strict=True))
    return [found[i] for i in range(len(clusters))]


def merged(parts: list[Moments]) -> Moments:
    """The moments of all parts together; a few threads merge the same runs of them in any case."""

    def joined(run: list[Moments]) -> Moments:
        return functools.reduce(Moments.merge, run[1:], copy.copy(run[0]))

    height = -(-len(parts) // MERGED_AT_ONCE)
    starts = range(0, len(parts), height)
    return joined(over_threads(joined, [parts[start : start + height] for start in starts]))


def remove(rows: Array, mean: Array, components: Array, out: Array) -> None:
    """Write rows - mean to out, without their projections on the components."""
    linalg.namespace(rows).subtract(rows, mean, out=out)
    if components.shape[0]:
        out -= (out @ components.T) @ components


@public
@dataclass(eq=False, repr=False)
class ClusterRemoval(Repair):
    r"""Cluster the rows, then subtract each cluster's mean and its principal directions.

    New rows are repaired like the cluster with the nearest centroid.

    Parameters
    ----------
    n_clusters : int
        Capped at the number of rows, with a warning.
    n_components : int
        Directions removed from every cluster, at most n_features - 1. Zero only centres clusters.
    side : {"top", "bottom"}
        "bottom" removes the directions of least variance instead. In a cluster with few rows those
        without variance are among them, so that less is removed.
    random_state : int
        Seed of the clustering.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters_, n_features)
    means_ : array of shape (n_clusters_, n_features)
        Means of the members, which are subtracted.
    components_ : array of shape (n_clusters_, n_components, n_features)
        Removed directions; rows beyond a cluster's `n_components_` are zero.
    n_components_ : array of shape (n_clusters_,)

    Notes
    -----
    Section 3 of Rajaee and Pilehvar 2021 (27 clusters and 12 directions for BERT). Differs from
    it: k-means is seeded and starts from k-means++; new rows can be repaired; and a cluster with
    too few rows for its top directions (fewer than n_components + 2), on which the published code
    fails, is dissolved, and its rows join the nearest other cluster; so is one of a single row.
    `n_dissolved_` says how many were. One cluster always remains, and it never loses its last
    direction with variance. Not affine.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((300, 8))
    >>> X[:150, 0] += 20
    >>> repair = ClusterRemoval(n_clusters=2, n_components=1).fit(X)
    >>> repair.means_[:, 0].round().astype(int).tolist() in ([0, 20], [20, 0])
    True
    """

    name = "cluster-removal"
    learned = {
        "cluster_centers_": Field("n_clusters, n_features"),
        "means_": Field("n_clusters, n_features"),
        "components_": Field("n_clusters, n_removed, n_features", orthonormal=True),
        "n_components_": Field("n_clusters", kind="int", low=0),
    }

    n_clusters: int = 27
    n_components: int = 12
    side: Side = "top"
    random_state: int = 0
    normalize: bool = False

    @property
    def n_clusters_(self) -> int:
        """Number of clusters that were large enough."""
        return len(self.means_)

    @property
    def n_dissolved_(self) -> int:
        """Number of clusters that were asked for and had too few rows, or too few distinct ones."""
        return self.n_clusters - self.n_clusters_

    def with_components(self, other: ClusterRemoval) -> ClusterRemoval:
        """The same clusters, with as many directions removed as `other` asks for."""
        found = copy.copy(self)
        found.n_components = other.n_components
        n_features = self.components_.shape[2]
        before, after = (min(n, n_features - 1) for n in (self.n_components, other.n_components))
        # at the bottom, those without variance come first and are not among the components
        absent = before - self.n_components_ if self.side == "bottom" else 0
        found.n_components_ = np.clip(after - absent, 0, self.n_components_)
        kept = np.arange(max(found.n_components_)) < found.n_components_[:, None]
        found.components_ = self.components_[:, : kept.shape[1]] * kept[:, :, None]
        return found

    def _check_params(self) -> None:
        super()._check_params()
        checks.integer(self.n_clusters, "n_clusters", 1)
        checks.integer(self.n_components, "n_components", 0)
        checks.integer(self.random_state, "random_state", 0)
        checks.choice(self.side, "side", SIDES)

    def _check_fitted(self) -> None:
        n_clusters, n_removed, n_features = self.components_.shape
        if not 1 <= n_clusters <= self.n_clusters:
            raise InputError(
                f"means_ must be of 1 to n_clusters={self.n_clusters} clusters, got {n_clusters}"
            )
        expect_removed(n_removed, self.n_components, n_features)
        there = self.components_.any(axis=2)
        past = (self.n_components_ > n_removed).any()
        if past or not np.array_equal(there, np.arange(n_removed) < self.n_components_[:, None]):
            raise InputError("components_ must have n_components_ directions each, but does not")

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        name = type(self).__name__
        n_removed = n_directions(self.n_components, source.n_features, name)
        n_clusters = min(self.n_clusters, source.n_samples)
        if n_clusters < self.n_clusters:
            warn(
                f"{name}: n_clusters={self.n_clusters} is more than the {n_clusters} rows of X; "
                f"at most {n_clusters} clusters are made."
            )
        centroids = kmeans(source, n_clusters, self.random_state, checkpoint)
        size = unit_of(centroids)
        centroids = linalg.scaled(centroids, size)
        n_least = n_removed + 2 if self.side == "top" else 2
        done = large_clusters(over(source, size), centroids, n_least, checkpoint)
        found, blocks = done.states
        self.held_out_ = held_out(blocks)
        parts = cluster_directions(found.clusters, n_removed, self.side, done.device)
        whole = Moments(found.centroids.mean(axis=0)).merge(merged(found.clusters))
        self.moments_ = whole.times(size)
        self.cluster_centers_ = linalg.scaled(found.centroids, -size)
        self.means_ = np.stack([cluster.times(size).mean for cluster in found.clusters])
        self.n_components_ = np.array([len(part) for part in parts])
        self.components_ = np.zeros((len(parts), max(self.n_components_), source.n_features))
        for row, part in zip(self.components_, parts, strict=True):
            row[: len(part)] = part
        return done.n_samples

    def apply(self, rows: Array, out: Array) -> None:
        means, components = like(self.means_, rows), like(self.components_, rows)
        if self.n_clusters_ == 1:
            remove(rows, means[0], components[0], out)
            return
        labels = linalg.nearest_label(rows, like(self.cluster_centers_, rows))
        order, bounds = linalg.by_label(labels, self.n_clusters_)
        sorted_rows = linalg.gathered(rows, order)
        for i, (start, stop) in enumerate(pairwise(bounds.tolist())):
            if stop > start:
                own = sorted_rows[start:stop]
                remove(own, means[i], components[i, : self.n_components_[i]], own)
        out[order] = sorted_rows

    def affine_form(self) -> tuple[Floats, Floats]:
        raise NotAffineError(
            "the repair is not affine: each cluster has its own map. Ship the saved file."
        )

    def own_steps(self) -> list[Step]:
        return [RemoveByCluster(self.cluster_centers_, self.means_, self.components_)]


def large_clusters(
    source: Source, centroids: Floats, n_least: int, checkpoint: Checkpoint | None
) -> Reduced[Any]:
    """Moments of the clusters with at least n_least rows, or of the largest one alone, and blocks.

    Rows of smaller clusters join the nearest other cluster.
    """
    while True:
        statistics: list[Any] = [ClusterMoments(centroids), BlockSums(source.n_samples)]
        found = reduce(source, statistics, checkpoint)
        sizes = np.array([cluster.n_rows for cluster in found.states[0].clusters])
        large = sizes >= n_least
        if not large.any():
            large[int(sizes.argmax())] = True
        if large.all():
            return found
        centroids = centroids[large]

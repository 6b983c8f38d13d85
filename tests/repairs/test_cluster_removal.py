"""Cluster removal against the paper's steps written out, and where those would fail."""

import weakref

import numpy as np
import pytest
from sklearn.cluster import KMeans

from isotropy import AllButTheTop, Center, ClusterRemoval, linalg, threads
from isotropy.errors import IsotropyWarning
from isotropy.repairs import removal
from isotropy.sources import ArraySource
from isotropy.stats import Moments

from ..on_device import as_device, copies_to_host, device_source


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(5)
    centers = 6 * random.standard_normal((5, 20))
    spread = np.arange(1, 21) ** -0.5
    return centers[random.integers(5, size=1500)] + spread * random.standard_normal((1500, 20))


def written_out(X, labels, n_components):
    """Section 3 of the cluster-based paper: centre each cluster, drop its top directions."""
    out = np.empty_like(X)
    for label in np.unique(labels):
        centred = X[labels == label] - X[labels == label].mean(0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:n_components]
        out[labels == label] = centred - centred @ axes.T @ axes
    return out


def nearest(X, centers):
    return ((X[:, None] - centers) ** 2).sum(-1).argmin(1)


@pytest.mark.parametrize("n_components", [0, 1, 4])
def test_it_is_what_the_paper_says(X, n_components):
    repair = ClusterRemoval(5, n_components).fit(X)
    expected = written_out(X, nearest(X, repair.cluster_centers_), n_components)
    assert np.allclose(repair.transform(X), expected, atol=1e-9)


def test_new_rows_are_treated_by_the_nearest_cluster(X):
    repair = ClusterRemoval(5, 2).fit(X[:1000])
    new = X[1000:]
    label = nearest(new, repair.cluster_centers_)
    centred = new - repair.means_[label]
    axes = repair.components_[label]
    expected = centred - np.einsum("nkd,nk->nd", axes, np.einsum("nkd,nd->nk", axes, centred))
    assert np.allclose(repair.transform(new), expected, atol=1e-9)


def test_one_cluster_is_the_global_repair(X):
    assert np.allclose(
        ClusterRemoval(1, 3).fit_transform(X), AllButTheTop(3).fit_transform(X), atol=1e-9
    )
    assert np.allclose(ClusterRemoval(1, 0).fit_transform(X), Center().fit_transform(X), atol=1e-9)


def test_clusters_are_as_tight_as_scikit_learns(X):
    ours, theirs = [], []
    for seed in range(5):
        repair = ClusterRemoval(8, 0, random_state=seed).fit(X)
        distances = ((X[:, None] - repair.cluster_centers_) ** 2).sum(-1).min(1)
        ours.append(distances.sum())
        theirs.append(KMeans(8, random_state=seed).fit(X).inertia_)
    assert np.mean(ours) <= 1.005 * np.mean(theirs)


def test_more_rows_than_the_sample_are_clustered_too():
    random = np.random.default_rng(0)
    centers = 10 * random.standard_normal((3, 16))
    X = centers[random.integers(3, size=30_000)] + random.standard_normal((30_000, 16))
    repair = ClusterRemoval(3, 0).fit(X.astype(np.float32))
    order = nearest(centers, repair.cluster_centers_)
    assert np.abs(repair.means_[order] - centers).max() < 0.1


def test_small_clusters_are_dissolved(X):
    outliers = np.vstack([X, X[:3] + 500])
    repair = ClusterRemoval(6, 4).fit(outliers)
    assert repair.n_clusters_ == 5
    assert np.isfinite(repair.transform(outliers)).all()


def test_least_directions_leave_small_clusters_whole(X):
    """The null space of a cluster with few rows counts as directions of least variance."""
    n_components, few = 15, X[:10] + 500  # ten rows of 20 features span nine dimensions
    rows = np.vstack([X, few])
    repair = ClusterRemoval(6, n_components, side="bottom").fit(rows)
    assert (repair.n_clusters_, repair.n_dissolved_) == (6, 0)
    labels = nearest(rows, repair.cluster_centers_)
    small = labels[-1]
    assert (labels == small).sum() == 10
    assert repair.n_components_[small] == n_components - (20 - 9)
    expected = np.empty_like(rows)
    for label in np.unique(labels):
        centred = rows[labels == label] - rows[labels == label].mean(0)
        least = np.linalg.svd(centred)[2][20 - n_components :]
        expected[labels == label] = centred - centred @ least.T @ least
    assert np.allclose(repair.transform(rows), expected, atol=1e-9)
    for n in (5, 12):  # five are all in the null space of the small cluster
        other = ClusterRemoval(6, n, side="bottom")
        alone, shared = other.fit(rows), repair.with_components(other)
        assert shared.n_components_.tolist() == alone.n_components_.tolist()
        assert np.allclose(shared.transform(rows), alone.transform(rows), atol=1e-9)


def test_dissolved_clusters_are_counted(X):
    repair = ClusterRemoval(6, 12).fit(np.vstack([X, X[:10] + 500]))
    assert (repair.n_clusters_, repair.n_dissolved_) == (5, 1)


def test_more_clusters_than_rows_warn_and_work():
    X = np.random.default_rng(0).standard_normal((9, 5))
    with pytest.warns(IsotropyWarning, match="n_clusters=27 is more than the 9 rows of X"):
        repair = ClusterRemoval(n_components=1).fit(X)
    assert 1 <= repair.n_clusters_ <= 3


def test_fewer_distinct_rows_than_clusters_work():
    X = np.repeat(np.random.default_rng(0).standard_normal((3, 5)), 40, axis=0)
    repair = ClusterRemoval(8, 1).fit(X)
    assert repair.n_clusters_ == 3
    assert np.allclose(repair.transform(X), 0)


def test_another_seed_gives_another_clustering(X):
    first, second = (ClusterRemoval(9, 0, random_state=s).fit(X).cluster_centers_ for s in (0, 1))
    assert not np.allclose(np.sort(first, axis=0), np.sort(second, axis=0))


def test_weights_count_as_repetition_for_the_means(X):
    weights = np.random.default_rng(0).integers(1, 4, size=len(X))
    repair = ClusterRemoval(5, 1).fit(X, sample_weight=weights)
    label = nearest(X, repair.cluster_centers_)
    for i, mean in enumerate(repair.means_):
        members = label == i
        assert np.allclose(mean, np.average(X[members], axis=0, weights=weights[members]))


def test_a_source_can_be_fitted_like_an_array(X):
    a = ClusterRemoval(5, 2).fit(ArraySource(X)).transform(X)
    assert np.array_equal(a, ClusterRemoval(5, 2).fit(X).transform(X))


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"n_clusters": 0}, "ClusterRemoval: n_clusters must be an integer of at least 1, got 0."),
        ({"n_components": 1.5}, "ClusterRemoval: n_components must be an integer"),
        ({"side": "left"}, "ClusterRemoval: side must be one of 'top', 'bottom', got 'left'."),
        ({"random_state": None}, "ClusterRemoval: random_state must be an integer"),
    ],
)
def test_bad_parameters_get_one_line(X, params, line):
    with pytest.raises(ValueError, match=line):
        ClusterRemoval(**params).fit(X)


@pytest.mark.parametrize("shift", [1e3, 1e4, 1e5])
def test_clusters_far_from_the_origin_are_told_apart(shift):
    random = np.random.default_rng(0)
    rows = random.standard_normal((400, 8)) + 5 * random.integers(2, size=(400, 1)) + shift
    assert ClusterRemoval(2, 1).fit(rows.astype(np.float32)).n_clusters_ == 2


@pytest.mark.parametrize("side", ["top", "bottom"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_on_a_device_are_repaired_like_those_of_the_cpu(X, side, dtype):
    torch = pytest.importorskip("torch")
    rows = X.astype(dtype)
    here = ClusterRemoval(5, 3, side=side).fit(rows)
    with as_device():
        there = ClusterRemoval(5, 3, side=side).fit(device_source(rows))
        made = torch.empty(rows.shape, dtype=getattr(torch, np.dtype(dtype).name))
        there.apply(torch.from_numpy(rows), made)
    eps = float(np.finfo(dtype).eps)
    order = nearest(here.cluster_centers_, there.cluster_centers_)
    assert sorted(order) == list(range(5))
    assert np.abs(there.means_[order] - here.means_).max() <= 100 * eps * np.abs(rows).max()
    assert (there.n_components_[order] == here.n_components_).all()
    expected = here.transform(rows)
    assert np.abs(made.numpy() - expected).max() <= 1e4 * eps * np.abs(rows).max()


def test_directions_on_a_device_need_no_decomposition_unless_they_are_not_found(X, monkeypatch):
    pytest.importorskip("torch")
    calls, full = [], removal.directions
    monkeypatch.setattr(removal, "directions", lambda *args: calls.append(1) or full(*args))
    with as_device():
        found = ClusterRemoval(5, 3).fit(device_source(X)).components_
        assert not calls
        monkeypatch.setattr(linalg, "FILTERS", 0)
        given_up = ClusterRemoval(5, 3).fit(device_source(X)).components_
    assert len(calls) == 5
    for a, b in zip(found, given_up, strict=True):
        assert np.abs(np.abs(a @ b.T) - np.eye(3)).max() < 1e-9


def test_a_block_on_a_device_is_repaired_with_few_copies_to_the_host(X):
    torch = pytest.importorskip("torch")
    repair, rows = ClusterRemoval(5, 2).fit(X), torch.from_numpy(X)
    with copies_to_host() as copies:
        repair.apply(rows, torch.empty_like(rows))
    assert copies.total() <= 3  # the scale of centroids, finite distances, where clusters begin


def test_the_fit_is_the_same_for_any_number_of_threads(X, monkeypatch):
    found = []
    for n in (1, 4):
        monkeypatch.setattr(threads, "n_threads", lambda n=n: n)
        repair = ClusterRemoval(7, 3).fit(ArraySource(X.astype(np.float32), chunk_rows=200))
        found.append([repair.cluster_centers_, repair.means_, repair.components_])
    for one, other in zip(*found, strict=True):
        assert (one == other).all()


def test_moments_of_many_clusters_are_merged_with_few_matrices_at_a_time(X, monkeypatch):
    parts = [Moments().update(rows) for rows in np.array_split(X, 50)]
    before = [part.state() for part in parts]
    sum_with_outer, made, most = linalg.sum_with_outer, weakref.WeakSet(), []

    class Matrix(np.ndarray):
        """An array with a hash, for the set."""

        __hash__ = object.__hash__

    def counted(*given):
        found = sum_with_outer(*given).view(Matrix)
        made.add(found)
        most.append(len(made))
        return found

    monkeypatch.setattr(linalg, "sum_with_outer", counted)
    monkeypatch.setattr(threads, "n_threads", lambda: 8)
    whole, expected = removal.merged(parts), Moments().update(X)
    assert len(most) == len(parts) - 1
    assert max(most) <= 2 * removal.MERGED_AT_ONCE
    np.testing.assert_allclose(whole.scatter, expected.scatter, rtol=1e-12, atol=1e-9)
    assert whole.n_rows == len(X)
    for part, state in zip(parts, before, strict=True):
        for name, value in part.state().items():
            np.testing.assert_array_equal(value, state[name])

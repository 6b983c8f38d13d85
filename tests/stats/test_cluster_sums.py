"""Sums and moments of clusters against float64 written out, for every way they are made."""

import numpy as np
import pytest

from isotropy import linalg, threads
from isotropy.engines import reduce
from isotropy.sources import ArraySource
from isotropy.stats import ClusterMoments, ClusterSums, Moments

from ..on_device import as_device, copies_to_host

N, D, K = 2000, 48, 7


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    return (random.standard_normal((N, D)) * np.linspace(0.1, 3, D) + 2).astype(np.float32)


def written_out(rows, centroids):
    """The nearest centroid of each row, and its squared distance, in float64."""
    apart = rows.astype(np.float64)[:, None] - centroids.astype(np.float64)
    squared = (apart**2).sum(axis=2)
    return squared.argmin(axis=1), squared.min(axis=1)


def as_tensor(rows):
    return pytest.importorskip("torch").from_numpy(rows)


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("K", [1, 7, 300, 5000])
def test_label_sums_are_those_of_the_rows_of_each_label(
    rows, place, dtype, weighted, K, monkeypatch
):
    for name in ("MEMBERS", "MEMBERS_ON_DEVICE"):  # so that they are summed in pieces
        monkeypatch.setattr(linalg, name, 300 * K)
    random = np.random.default_rng(1)
    labels = random.integers(0, max(K - 1, 1), N)  # the last label of several has no row
    w = random.random(N) if weighted else np.ones(N)
    X = rows.astype(dtype)
    weights = place(w.astype(dtype)) if weighted else None
    totals, found = linalg.label_sums(place(X), place(labels), K, weights)
    expected = [(w[labels == k, None] * rows[labels == k]).sum(axis=0) for k in range(K)]
    sizes = np.array([(w[labels == k, None] * np.abs(rows[labels == k])).sum() for k in range(K)])
    error = np.abs(linalg.to_numpy(found) - expected)
    eps = float(np.finfo(dtype).eps)
    assert str(linalg.to_numpy(found).dtype) == "float64"
    assert (error <= 16 * eps * np.maximum(sizes, 1)[:, None]).all()
    assert K == 1 or (linalg.to_numpy(found)[-1] == 0).all()
    expected = np.bincount(labels, w.astype(dtype), K)
    assert str(linalg.to_numpy(totals).dtype) == "float64"
    assert np.allclose(linalg.to_numpy(totals), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
@pytest.mark.parametrize("exact", [False, True])
def test_a_step_is_the_float64_step(rows, place, exact, monkeypatch):
    if not exact:
        monkeypatch.setattr("isotropy.stats.clusters.EXACT_SUMS", 0)
    labels, squared = written_out(rows, rows[:K])
    found = ClusterSums(rows[:K]).update(place(rows))
    means = [rows[labels == k].mean(axis=0, dtype=np.float64) for k in range(K)]
    np.testing.assert_array_equal(found.weight, np.bincount(labels))
    np.testing.assert_allclose(found.means, means, atol=1e-5 if not exact else 2e-6)
    assert found.inertia == pytest.approx(squared.sum(), rel=1e-5)


@pytest.mark.parametrize(("products", "rtol"), [("float32", 1e-6), ("float64", 1e-12)])
def test_moments_of_clusters_are_as_exact_as_those_of_all_rows(rows, products, rtol, monkeypatch):
    if products == "float32":
        monkeypatch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", 0)
    labels, _ = written_out(rows, rows[:K])
    found = ClusterMoments(rows[:K]).update(rows)
    assert found.n_rows == N
    for k, cluster in enumerate(found.clusters):
        part = rows[labels == k].astype(np.float64)
        centred = part - part.mean(axis=0)
        expected = centred.T @ centred
        assert cluster.n_rows == len(part)
        assert cluster.resolution == float(np.finfo(products).eps)
        np.testing.assert_allclose(cluster.mean, part.mean(axis=0), rtol=rtol, atol=rtol)
        np.testing.assert_allclose(cluster.scatter, expected, atol=rtol * np.trace(expected))


def test_an_update_decides_for_all_clusters_whether_products_are_exact(rows, monkeypatch):
    """Many small clusters of a large update are no small updates."""
    monkeypatch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", N * D**2)
    large = ClusterMoments(rows[:K]).update(rows).clusters
    small = ClusterMoments(rows[:K]).update(rows[:-1]).clusters
    single, double = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
    assert {cluster.resolution for cluster in large} == {single}
    assert {cluster.resolution for cluster in small} == {double}


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_on_a_device_are_those_of_the_cpu(rows, weighted):
    pytest.importorskip("torch", reason="makes tensors")
    w = np.random.default_rng(1).integers(0, 4, N).astype(float) if weighted else None
    here = ClusterMoments(rows[:K]).update(rows, w)
    with as_device(), copies_to_host() as copies:
        there = ClusterMoments(rows[:K]).update(as_tensor(rows), w)
    assert copies["arrays"] <= 1 + K * weighted  # where clusters begin, and whose weights are whose
    for mine, theirs in zip(here.clusters, there.to_host().clusters, strict=True):
        assert mine.n_rows == theirs.n_rows
        np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(mine.scatter, theirs.scatter, atol=1e-10 * mine.scatter.max())


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
def test_rows_are_gathered_a_few_at_a_time(rows, place, monkeypatch):
    for name in ("GATHERED", "GATHERED_ON_DEVICE"):
        monkeypatch.setattr(f"isotropy.stats.clusters.{name}", 10 * D)
    sizes, take = [], linalg.gathered
    monkeypatch.setattr(linalg, "gathered", lambda X, n: sizes.append(len(n)) or take(X, n))
    whole = ClusterMoments(rows[:K])
    with as_device():
        whole.update(place(rows))
    assert sum(sizes) == N
    assert max(sizes) == 10
    labels, _ = written_out(rows, rows[:K])
    for k, cluster in enumerate(whole.to_host().clusters):
        part = rows[labels == k].astype(np.float64)
        expected = (part - part.mean(axis=0)).T @ (part - part.mean(axis=0))
        np.testing.assert_allclose(cluster.scatter, expected, atol=1e-10 * np.trace(expected))


@pytest.mark.parametrize("k", [1, 3, K])
def test_an_update_is_the_same_for_any_number_of_threads(rows, k, monkeypatch):
    monkeypatch.setattr("isotropy.stats.clusters.LEAST_SPAN", 50)
    monkeypatch.setattr(linalg, "BLOCK_ELEMENTS", 300 * D)
    states = []
    for n in (1, 4):
        monkeypatch.setattr(threads, "n_threads", lambda n=n: n)
        states.append(ClusterMoments(rows[:k]).update(rows).update(rows[::3]).state())
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])


def test_a_large_cluster_is_split_and_a_small_one_is_not(rows, monkeypatch):
    monkeypatch.setattr("isotropy.stats.clusters.LEAST_SPAN", 50)
    monkeypatch.setattr("isotropy.stats.clusters.MOST_SPANS", 4)
    centroids = np.stack([rows.mean(axis=0), rows[0] + 100])
    moved = np.concatenate([rows, rows[:100] + 100])
    added, add = [], Moments.add_blocks

    def counted(self, blocks, X, exact):
        blocks = list(blocks)
        added.append(sum(len(rows) for rows, _ in blocks))
        add(self, blocks, X, exact)

    monkeypatch.setattr(Moments, "add_blocks", counted)
    found = ClusterMoments(centroids).update(moved)
    assert sorted(added) == [100, 666, 667, 667]
    assert [cluster.n_rows for cluster in found.clusters] == [N, 100]
    expected = Moments(centroids[0]).update(rows)
    np.testing.assert_allclose(
        found.clusters[0].scatter, expected.scatter, atol=1e-10 * np.trace(expected.scatter)
    )


def test_a_pass_has_one_state_for_all_threads(rows, monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 4)
    made, init = [], ClusterMoments.__init__
    monkeypatch.setattr(ClusterMoments, "__init__", lambda self, c: made.append(1) or init(self, c))
    given = ClusterMoments(rows[:K])
    (found,) = reduce(ArraySource(rows, chunk_rows=100), [given]).states
    assert found.n_rows == N
    assert len(made) == 2  # the one that was given, and that of the pass

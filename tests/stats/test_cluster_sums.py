"""Sums and moments of clusters against float64 written out, for every way they are made."""

import numpy as np
import pytest

from isotropy import linalg
from isotropy.stats import ClusterMoments, ClusterSums

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
def test_label_sums_are_those_of_the_rows_of_each_label(rows, place, dtype, weighted, K):
    random = np.random.default_rng(1)
    labels = random.integers(0, max(K - 1, 1), N)  # the last label of several has no row
    w = random.random(N) if weighted else np.ones(N)
    X = rows.astype(dtype)
    weights = place(w.astype(dtype)) if weighted else None
    found = linalg.label_sums(place(X), place(labels), K, weights)
    expected = [(w[labels == k, None] * rows[labels == k]).sum(axis=0) for k in range(K)]
    sizes = np.array([(w[labels == k, None] * np.abs(rows[labels == k])).sum() for k in range(K)])
    error = np.abs(linalg.to_numpy(found) - expected)
    eps = float(np.finfo(dtype).eps)
    assert str(linalg.to_numpy(found).dtype) == "float64"
    assert (error <= 16 * eps * np.maximum(sizes, 1)[:, None]).all()
    assert K == 1 or (linalg.to_numpy(found)[-1] == 0).all()


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

"""Each statistic against sums written out, and the digits that sharding keeps."""

import copy

import numpy as np
import pytest
from scipy.special import logsumexp

import isotropy
from isotropy import kernels, linalg
from isotropy.errors import InputError
from isotropy.kernels import SUMMED_ROWS
from isotropy.metrics import isoscore
from isotropy.stats import (
    ClusterMoments,
    ClusterSums,
    Directions,
    LogPartition,
    Moments,
    Sample,
    directions,
)

from ..on_device import as_device
from ..tolerances import of_sum


def rows(n_samples=400, n_features=6, seed=0):
    random = np.random.default_rng(seed)
    return random.exponential(size=(n_samples, n_features)) * np.linspace(3, 1, n_features) + 1


def weights(n_samples=400):
    return np.random.default_rng(1).uniform(0.1, 3, n_samples)


@pytest.mark.parametrize("w", [None, weights()], ids=["plain", "weighted"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_equal_sums_about_the_mean(w, offset):
    X = rows() + offset
    moments = Moments().update(X[:100], None if w is None else w[:100])
    moments.merge(Moments().update(X[100:], None if w is None else w[100:]))
    w = np.ones(len(X)) if w is None else w
    local = X - X[0]
    mean = w @ local / w.sum()
    Y = local - mean
    radius = (Y * Y).sum(1)
    assert moments.weight == pytest.approx(w.sum(), rel=1e-12)
    assert moments.n_rows == len(X)
    np.testing.assert_allclose(moments.mean, mean + X[0], rtol=1e-14)
    np.testing.assert_allclose(moments.scatter, (Y.T * w) @ Y, rtol=1e-9, atol=1e-9)
    third = (w * radius) @ Y
    close = 1e-9 * np.abs(third).max()
    np.testing.assert_allclose(moments.centred.third, third, rtol=0, atol=close)
    assert moments.centred.fourth == pytest.approx(w @ radius**2, rel=1e-9)
    assert np.abs(moments.centred.total).max() < 1e-6


def test_moments_about_another_point_are_sums_about_it():
    X, point = rows(), np.arange(6.0)
    moved = Moments().update(X).about(point)
    Y = X - point
    np.testing.assert_allclose(moved.total, Y.sum(0), rtol=1e-10)
    np.testing.assert_allclose(moved.products, Y.T @ Y, rtol=1e-10)
    np.testing.assert_allclose(moved.third, (Y * Y).sum(1) @ Y, rtol=1e-10)
    assert moved.fourth == pytest.approx(((Y * Y).sum(1) ** 2).sum(), rel=1e-10)


def test_directions_equal_sums_over_unit_rows():
    X, w = rows(50), weights(50)
    X[[4, 9]] = 0
    found = Directions().update(X[:20], w[:20]).update(X[20:], w[20:])
    lengths = np.linalg.norm(X, axis=1)
    seen = lengths > 0
    U, v = X[seen] / lengths[seen, None], w[seen]
    np.testing.assert_allclose(found.unit_sum, v @ U, rtol=1e-12)
    np.testing.assert_allclose(found.unit_square_sum, v**2 @ U**2, rtol=1e-12)
    assert (found.weight, found.squared_weight) == pytest.approx((v.sum(), v @ v), rel=1e-12)
    assert (found.zero_rows, found.norm_min) == (2, 0)
    assert found.zero_weight == pytest.approx(w[[4, 9]].sum(), rel=1e-12)
    assert found.norm_sum == pytest.approx(w @ lengths, rel=1e-12)
    assert found.mean_norm == pytest.approx(w @ lengths / w.sum(), rel=1e-12)
    assert found.norm_max == pytest.approx(lengths.max(), rel=1e-15)


@pytest.mark.parametrize("scale", [1, 300, 1e5])
@pytest.mark.parametrize("center", [None, rows().mean(0)], ids=["plain", "centred"])
def test_log_partition_equals_logsumexp_at_any_scale(scale, center):
    X, w = rows() * scale, weights()
    center = None if center is None else center * scale
    basis = np.linalg.qr(np.random.default_rng(2).standard_normal((6, 6)))[0][:, :4]
    found = LogPartition(basis, center).update(X[:150], w[:150]).update(X[150:], w[150:])
    scores = (X if center is None else X - center) @ basis
    close = {"rtol": 1e-12, "atol": 1e-9}
    np.testing.assert_allclose(found.log_plus, logsumexp(scores, 0, b=w[:, None]), **close)
    np.testing.assert_allclose(found.log_minus, logsumexp(-scores, 0, b=w[:, None]), **close)
    assert found.weight == pytest.approx(w.sum())


def test_a_zero_row_on_a_device_makes_copies_of_few_rows_only(monkeypatch):
    torch = pytest.importorskip("torch", reason="makes tensors")
    X = rows().astype(np.float32)
    X[3] = 0
    monkeypatch.setattr(linalg, "block_rows", lambda n_features: 10)
    monkeypatch.setattr(directions, "ON_DEVICE", 2)
    monkeypatch.setattr(directions, "UNCOPIED", 1000)
    monkeypatch.setattr(kernels, "fits_unit_sums", lambda X: True)
    scaled, heights = linalg.scaled, []

    def counted(rows, exponent):
        if rows.ndim == 2:
            heights.append(len(rows))
        return scaled(rows, exponent)

    monkeypatch.setattr(linalg, "scaled", counted)
    with as_device():
        found = Directions(exact=False).update(torch.from_numpy(X)).to_host()
    assert max(heights) == 20
    assert sum(heights) == len(X)
    expected = Directions(exact=True).update(X)
    assert found.zero_rows == 1
    for name, value in expected.state().items():
        if name != "resolution" and name != "exact":
            tolerance = of_sum(len(X))
            np.testing.assert_allclose(found.state()[name], value, rtol=tolerance, atol=tolerance)


def test_a_basis_is_beside_the_rows_only_during_the_pass():
    torch = pytest.importorskip("torch", reason="makes tensors")
    partition = LogPartition(np.eye(6))
    with as_device():
        partition.update(torch.from_numpy(rows()))
        copied = partition._basis_there
        partition.update(torch.from_numpy(rows()))
    assert copied is not None
    assert partition._basis_there is copied
    assert partition.to_host()._basis_there is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_partition_of_long_float32_rows_does_not_overflow(dtype):
    X = (rows() * 40).astype(dtype)
    found = LogPartition(np.eye(6)).update(X)
    expected = logsumexp(X.astype(float), 0), logsumexp(-X.astype(float), 0)
    np.testing.assert_allclose(found.log_plus, expected[0], rtol=1e-6)
    np.testing.assert_allclose(found.log_minus, expected[1], rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_cluster_statistics_equal_those_of_the_nearest_rows(offset):
    X, w = rows() + offset, weights()
    centroids = X[[0, 7, 30]]
    labels = ((X[:, None] - centroids) ** 2).sum(2).argmin(1)
    found = ClusterMoments(centroids).update(X, w)
    sums = ClusterSums(centroids).update(X, w)
    assert sums.inertia == pytest.approx(w @ ((X - centroids[labels]) ** 2).sum(1), rel=1e-8)
    for i, cluster in enumerate(found.clusters):
        own = labels == i
        mean = w[own] @ (X[own] - X[0]) / w[own].sum()
        Y = X[own] - X[0] - mean
        np.testing.assert_allclose(cluster.mean, mean + X[0], rtol=1e-12)
        np.testing.assert_allclose(sums.means[i], mean + X[0], rtol=1e-12)
        np.testing.assert_allclose(cluster.scatter, (Y.T * w[own]) @ Y, rtol=1e-8, atol=1e-6)
        assert sums.weight[i] == pytest.approx(w[own].sum(), rel=1e-12)


def test_an_empty_cluster_keeps_its_centroid():
    X = rows()
    far = np.concatenate([X[:1], np.full((1, 6), -1e3)])
    sums, moments = ClusterSums(far).update(X), ClusterMoments(far).update(X)
    np.testing.assert_array_equal(sums.means[1], far[1])
    assert [cluster.n_rows for cluster in moments.clusters] == [len(X), 0]


def spectrum(statistic):
    return np.linalg.eigvalsh(statistic.scatter)[::-1]


@pytest.mark.parametrize("exact", [True, False], ids=["small updates", "large updates"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_sharding_float32_rows_keeps_their_digits(exact, offset, monkeypatch):
    if not exact:  # what updates of 2^33 multiply-adds and more do
        monkeypatch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", 0)
    dtype = np.float64 if exact else np.float32  # in which products of a block are summed
    X = (rows(6000, 32) + offset).astype(np.float32)
    whole = Moments().update(X)
    for cuts in ([1], [2500], [17, 2000, 2100, 5999]):
        parts = [Moments().update(part) for part in np.split(X, cuts)]
        merged = parts.pop()
        for part in reversed(parts):
            merged.merge(part)
        close, trace = of_sum(len(X), dtype), np.trace(whole.scatter)
        assert np.trace(merged.scatter) == pytest.approx(trace, rel=close)
        np.testing.assert_allclose(merged.mean, whole.mean, rtol=of_sum(SUMMED_ROWS, dtype))
        np.testing.assert_allclose(spectrum(merged), spectrum(whole), rtol=0, atol=close * trace)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("scale", "size"), [(1e200, np.inf), (1e-200, 0.0)])
def test_sums_past_the_range_of_floats_are_infinite_or_zero(scale, size):
    moments = Moments().update(rows(60, 4) * scale)
    assert moments.centred_fourth == moments.centred.fourth == size
    assert moments.over(moments.exponent).centred_fourth > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("constant", [0.0, 1e-200, 1.0, 1e200, -1.7e308])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_constant_rows_do_not_hide_others(constant, scale):
    """Their exponent is that of no variation, so it is not the one of what they are joined to."""
    still, X = np.full((100, 8), constant), rows(200, 8) * scale
    whole = Moments().update(np.concatenate([still, X]))
    one, two, three = (Moments().update(part) for part in (still, X[:90], X[90:]))
    joined = [
        Moments().merge(one).merge(two).merge(three),
        Moments().merge(one).merge(copy.copy(two).merge(three).merge(Moments())),
        Moments().merge(three).merge(two).merge(one),
        Moments().update(still).update(X),
        Moments().update(X).update(still),
    ]
    expected = whole.over(whole.exponent)
    assert np.trace(expected.scatter) > 0
    for found in joined:
        part = found.over(whole.exponent)
        close = of_sum(300, np.float64) * np.trace(expected.scatter)
        np.testing.assert_allclose(part.scatter, expected.scatter, rtol=0, atol=close)
        assert part.centred_fourth == pytest.approx(expected.centred_fourth, rel=1e-12)


def test_isoscore_does_not_depend_on_chunks_of_zero_rows():
    X = np.concatenate([np.zeros((100, 8)), rows(200, 8) * 1e-200])
    chunks = isotropy.open(X, chunk_rows=100)
    assert isoscore(chunks) == pytest.approx(isoscore(X), rel=1e-12)


@pytest.mark.parametrize("kind", [ClusterMoments, ClusterSums])
def test_sharding_float32_rows_keeps_the_means_of_clusters(kind):
    X = rows(6000, 32).astype(np.float32)
    centroids = X[:3].astype(float)

    def means(statistic):
        found = statistic.means if kind is ClusterSums else [c.mean for c in statistic.clusters]
        return np.asarray(found)

    whole = means(kind(centroids).update(X))
    merged = kind(centroids).update(X[:2500]).merge(kind(centroids).update(X[2500:]))
    np.testing.assert_allclose(means(merged), whole, rtol=1e-7)


def test_sample_is_decided_by_global_row_numbers():
    X = rows(500)
    whole = Sample(40, seed=3).update(X)
    shuffled = Sample(40, seed=3)
    for start in (300, 0, 400, 100, 200):
        shuffled.update(X[start : start + 100], first_row=start)
    np.testing.assert_array_equal(whole.numbers, shuffled.numbers)
    np.testing.assert_array_equal(whole.rows, X[whole.numbers])
    elsewhere = Sample(40, seed=3).update(X, first_row=1000)
    assert set(elsewhere.numbers) != {i + 1000 for i in whole.numbers}
    assert set(Sample(40, seed=4).update(X).numbers) != set(whole.numbers)


def test_sample_is_nested_and_uniform():
    X = np.zeros((2000, 1))
    small, large = Sample(50).update(X), Sample(200).update(X)
    np.testing.assert_array_equal(small.numbers, large.numbers[:50])
    counts = np.zeros(2000)
    for seed in range(300):
        counts[Sample(200, seed).update(X).numbers] += 1
    halves = counts.reshape(4, -1).sum(1) / counts.sum()
    np.testing.assert_allclose(halves, 0.25, atol=0.01)
    assert counts.mean() == 30
    assert 4.5 < counts.std() < 6  # binomial: 5.2


def test_sample_holds_every_row_until_it_is_full():
    X, w = rows(30), np.arange(30.0)
    sample = Sample(30).update(X, w)
    assert sample.complete
    assert sorted(sample.numbers) == list(range(1, 30))  # row 0 has no weight
    np.testing.assert_array_equal(sample.weights, w[sample.numbers])
    assert not sample.update(X, first_row=30).complete
    assert len(sample.rows) == 30


def test_sample_keeps_the_digits_of_the_widest_rows():
    narrow, wide = np.ones((4, 2), dtype=np.float32), np.full((3, 2), 1e100)
    sample = Sample(10).update(narrow).merge(Sample(10).update(wide, first_row=4))
    assert sample.rows.dtype == np.float64
    assert sorted(sample.rows[:, 0]) == [1.0] * 4 + [1e100] * 3


def test_sample_refuses_a_row_that_comes_twice():
    sample = Sample(100).update(rows(20))
    message = r"Sample: each row must come once, got row \d+ twice\. .* as first_row\."
    with pytest.raises(InputError, match=message):
        sample.update(rows(20))
    with pytest.raises(InputError, match=message):
        Sample(100).update(rows(5), first_row=3).merge(Sample(100).update(rows(5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sample(0), r"Sample: size must be an integer of at least 1, got 0\."),
        (lambda: Sample(5, seed=-1), r"Sample: seed must be an integer of at least 0, got -1\."),
        (lambda: LogPartition(np.ones(3)), r"LogPartition: basis must be 2D, got 1D\."),
        (lambda: ClusterSums(np.ones(3)), r"ClusterSums: centroids must be 2D, got 1D\."),
        (lambda: Moments().update(np.ones(3)), r"Moments: X must be two-dimensional\."),
    ],
)
def test_settings_are_checked_in_words(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_blocks_are_even_and_have_a_largest_size_that_is_larger_on_a_device(monkeypatch):
    torch = pytest.importorskip("torch", reason="makes tensors")
    monkeypatch.setattr("isotropy.linalg.BLOCK_ELEMENTS", 1)  # then they have 256 rows
    starts = [start for start, _, _ in linalg.blocks(np.zeros((600, 2)))]
    assert starts == [0, 200, 400]
    starts = [start for start, _, _ in linalg.blocks(torch.zeros(3000, 2), on_device=4)]
    assert starts == [0, 1000, 2000]

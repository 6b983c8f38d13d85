"""k-means: its steps against float64 written out, on arrays and tensors, and how much it does."""

from collections import Counter

import numpy as np
import pytest

from isotropy import kmeans, linalg, threads
from isotropy.engines.local import Local
from isotropy.sources import ArraySource

from .on_device import copies_to_host

N, D, K = 2000, 24, 6


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    centers = 4 * random.standard_normal((K, D))
    return (centers[random.integers(K, size=N)] + random.standard_normal((N, D)) + 3).astype(
        np.float32
    )


def as_tensor(rows):
    return pytest.importorskip("torch").from_numpy(np.array(rows))


def inertia_of(rows, weights, centroids):
    apart = rows.astype(np.float64)[:, None] - centroids
    return float(weights @ (apart**2).sum(axis=2).min(axis=1))


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exact", [False, True])
def test_a_step_of_several_clusterings_is_that_of_each_in_float64(
    rows, place, dtype, exact, monkeypatch
):
    if not exact:
        monkeypatch.setattr(kmeans, "EXACT_SUMS", 0)
    monkeypatch.setattr(kmeans, "PART_ELEMENTS", 1)
    X, w = rows.astype(dtype), np.random.default_rng(1).random(N) + 0.5
    far = np.full((1, D), 1e3)  # no row is nearest to it
    starts = np.stack([np.concatenate([X[i : i + K - 1], far]) for i in (0, 50, 100)])
    points = kmeans.Points(place(X), place(w), 3 * K)
    found, inertia = points.step(place(starts.astype(np.float64)))
    eps = float(np.finfo(dtype).eps)
    size = float(np.abs(X).max())
    for start, centroids, value in zip(starts, linalg.to_numpy(found), inertia, strict=True):
        squared = ((X.astype(np.float64)[:, None] - start) ** 2).sum(axis=2)
        labels = squared.argmin(axis=1)
        assert value == pytest.approx(w @ squared.min(axis=1), rel=1e4 * eps)
        for k in range(K - 1):
            mine = labels == k
            mean = np.average(X[mine].astype(np.float64), axis=0, weights=w[mine])
            assert np.abs(centroids[k] - mean).max() <= 64 * eps * size
        assert (centroids[-1] == far).all()


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
def test_seeds_are_distinct_rows_and_those_of_a_tensor_are_the_same(rows, place):
    X = rows - rows.mean(axis=0)
    points = kmeans.Points(place(X), place(np.ones(N)), 3 * K)
    chosen = linalg.to_numpy(kmeans.plus_plus(points, 27, np.random.default_rng(3)))
    assert chosen.shape == (kmeans.N_STARTS, 27)
    for start in chosen:
        assert len(np.unique(X[start], axis=0)) == 27
    plain = kmeans.Points(X, np.ones(N), 3 * K)
    assert (chosen == kmeans.plus_plus(plain, 27, np.random.default_rng(3))).all()


@pytest.mark.parametrize("place", [np.asarray, as_tensor])
@pytest.mark.parametrize("n_distinct", [1, 4])
def test_there_are_no_more_seeds_than_distinct_rows(place, n_distinct):
    X = np.random.default_rng(0).standard_normal((n_distinct, D))
    repeated = np.repeat(X - X.mean(axis=0), 30, axis=0)
    points = kmeans.Points(place(repeated), place(np.ones(len(repeated))), 3 * K)
    chosen = linalg.to_numpy(kmeans.plus_plus(points, 9, np.random.default_rng(0)))
    assert chosen.shape[1] == n_distinct
    assert all(len(set(start // 30)) == n_distinct for start in chosen)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_tensor_is_clustered_like_an_array_at_any_scale(rows, scale):
    X, w = rows * np.float32(scale), np.random.default_rng(1).random(N) * 1e35
    found = [
        kmeans.of_sample(place(X), w, K, np.random.default_rng(0)) / scale
        for place in (np.asarray, as_tensor)
    ]
    assert all(np.isfinite(centroids).all() for centroids in found)
    values = [inertia_of(X / np.float32(scale), w, centroids) for centroids in found]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert values[0] <= 1.01 * D * w.sum()  # the clusters that were made have this much


def test_a_step_copies_once_to_the_host(rows):
    points = kmeans.Points(as_tensor(rows), as_tensor(np.ones(N)), 3 * K)
    with copies_to_host() as copies:
        chosen = kmeans.plus_plus(points, K, np.random.default_rng(0))
    assert copies.total() == 1
    centroids = linalg.double(points.rows[chosen])
    with copies_to_host() as copies:
        points.step(centroids)
    assert copies.total() == 1


def test_centroids_do_not_depend_on_the_number_of_threads(rows, monkeypatch):
    monkeypatch.setattr(kmeans, "PART_ELEMENTS", 1)
    found = []
    for n in (1, 4):
        monkeypatch.setattr(threads, "n_threads", lambda n=n: n)
        found.append(kmeans.of_sample(rows, np.ones(N), K, np.random.default_rng(0)))
    assert (found[0] == found[1]).all()


def test_all_starts_take_their_first_steps_and_one_goes_on(rows, monkeypatch):
    monkeypatch.setattr(kmeans, "TOLERANCE", -1.0)  # no start is ever done
    sizes, step = Counter(), kmeans.Points.step

    def counted(self, centroids):
        sizes[len(centroids)] += 1
        return step(self, centroids)

    monkeypatch.setattr(kmeans.Points, "step", counted)
    kmeans.of_sample(rows, np.ones(N), K, np.random.default_rng(0))
    assert sizes == {
        kmeans.N_STARTS: kmeans.FIRST_STEPS,
        1: kmeans.SAMPLE_STEPS - kmeans.FIRST_STEPS,
    }


def test_a_source_is_read_once_for_the_sample_and_once_a_step(rows, monkeypatch):
    passes, run = Counter(), Local.reduce

    def reduce(self, source, statistics, *arguments):
        passes.update(type(statistic).__name__ for statistic in statistics)
        return run(self, source, statistics, *arguments)

    monkeypatch.setattr(Local, "reduce", reduce)
    kmeans.kmeans(ArraySource(rows), 3, 0)  # 2,000 rows are more than a sample of 1,000
    assert passes["Sample"] == 1
    assert 2 <= passes["ClusterSums"] <= kmeans.SOURCE_STEPS
    passes.clear()
    kmeans.kmeans(ArraySource(rows), 27, 0)
    assert passes == {"Sample": 1}


def test_many_centroids_have_few_parts_and_bounded_blocks(rows, monkeypatch):
    monkeypatch.setattr(kmeans, "PART_ELEMENTS", 1)
    rows = rows.astype(np.float64)  # in which no row is so near to two centroids that it may change
    starts = rows[: 3 * K].reshape(3, K, D)
    usual = kmeans.Points(rows, np.ones(N), 3 * K)
    assert len(usual.parts) == kmeans.MOST_PARTS
    expected, inertia = usual.step(starts)
    monkeypatch.setattr(kmeans, "SUM_ELEMENTS", 2 * 3 * K * D)
    monkeypatch.setattr(kmeans, "SCORE_ELEMENTS", 7 * 3 * K)
    heights, sums = set(), kmeans.Points._sums
    monkeypatch.setattr(
        kmeans.Points,
        "_sums",
        lambda self, c, part: heights.add(part.stop - part.start) or sums(self, c, part),
    )
    few = kmeans.Points(rows, np.ones(N), 3 * K)
    assert len(few.parts) == 2
    found, other = few.step(starts)
    assert max(heights) == 7
    rounding = N * float(np.finfo(np.float64).eps)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding * np.abs(rows).max())
    np.testing.assert_allclose(other, inertia, rtol=D * rounding)


def test_steps_end_where_nothing_is_left_to_gain():
    rows = np.tile(np.eye(4), (300, 1))
    steps = []

    def step(centroids):
        steps.append(centroids)
        return centroids, np.zeros(1)

    kmeans.lloyd(step, rows[None, :4], 10)
    assert len(steps) == 2  # the second sees that the first gained nothing

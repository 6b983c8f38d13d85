"""Sorting by label, sums and first eigenvectors of many matrices, against numpy's."""

import numpy as np
import pytest

from isotropy import linalg

from .on_device import copies_to_host

D, FIRST = 60, 5


def as_tensor(X):
    return pytest.importorskip("torch").from_numpy(np.array(X))


each_place = pytest.mark.parametrize("place", [np.asarray, as_tensor])


@each_place
@pytest.mark.parametrize("n_labels", [1, 7, 40_000])
def test_rows_are_sorted_by_label_and_keep_their_order(place, n_labels):
    labels = np.random.default_rng(0).integers(0, max(1, n_labels - 1), 500)
    order, bounds = linalg.by_label(place(labels), n_labels)
    assert (linalg.to_numpy(order) == np.argsort(labels, kind="stable")).all()
    assert (np.diff(bounds) == np.bincount(labels, minlength=n_labels)).all()


def matrices():
    """Matrices without negative eigenvalues: (name, their eigenvalues in descending order)."""
    i = np.arange(1, D + 1)
    ties = np.ones(D)
    ties[: FIRST + 2] = 3.0
    return {
        "power": i**-0.8,
        "one far above": np.where(i == 1, 1e6, i**-0.8),
        "flat": np.linspace(1.5, 1, D),
        "ties": ties,
        "identity": np.ones(D),
        "few": np.where(i <= 3, 1.0, 0.0),
        "none": np.zeros(D),
        "small": 1e-100 * i**-0.8,
        "large": 1e100 * i**-0.8,
    }


def made(values, seed=0):
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, D))).Q
    product = (basis * values) @ basis.T
    return (product + product.T) / 2


@each_place
def test_first_eigenvectors_are_those_of_a_decomposition(place):
    spectra = matrices()
    stack = np.stack([made(values, seed) for seed, values in enumerate(spectra.values())])
    values, vectors, found = linalg.leading(place(stack), FIRST)
    values, vectors = linalg.to_numpy(values), linalg.to_numpy(vectors)
    assert found.all()
    eps = float(np.finfo(np.float64).eps)
    for i, (name, given) in enumerate(spectra.items()):
        expected, basis = np.linalg.eigh(stack[i])
        expected, basis = expected[::-1], basis[:, ::-1]
        error = D * eps * max(expected[0], 0.0)
        assert np.abs(values[i] - expected[:FIRST]).max() <= error, name
        residual = stack[i] @ vectors[i] - vectors[i] * values[i]
        assert np.linalg.norm(residual, axis=0).max() <= error, name
        assert np.abs(vectors[i].T @ vectors[i] - np.eye(FIRST)).max() <= 4 * D * eps, name
        gap = given[FIRST - 1] - given[FIRST]
        if gap > 0:  # Davis and Kahan: what is outside the space is at most residual over gap
            outside = vectors[i] - basis[:, :FIRST] @ (basis[:, :FIRST].T @ vectors[i])
            assert np.linalg.norm(outside, 2) <= 2 * FIRST * error / gap, name


def test_a_matrix_that_is_given_up_is_told(monkeypatch):
    monkeypatch.setattr(linalg, "FILTERS", 1)
    stack = np.stack([made(values) for values in (np.ones(D), np.arange(1, D + 1) ** -0.8)])
    assert linalg.leading(stack, FIRST)[2].tolist() == [True, False]


@each_place
def test_columns_are_made_orthonormal_whatever_their_condition(place):
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.standard_normal((n, 8))).Q for n in (D, 8))
    stack = np.stack([(left * 10.0 ** np.linspace(0, -e, 8)) @ right.T for e in (0, 6, 12)])
    found = linalg.to_numpy(linalg.orthonormal(place(stack)))
    for i, basis in enumerate(found):
        assert np.abs(basis.T @ basis - np.eye(8)).max() < 1e-12
        inside = basis @ (basis.T @ stack[i])
        assert np.abs(inside - stack[i]).max() <= 1e-12 * np.abs(stack[i]).max()


def test_each_filter_copies_once_to_the_host(monkeypatch):
    calls = []
    orthonormal = linalg.orthonormal
    monkeypatch.setattr(linalg, "orthonormal", lambda Y: calls.append(1) or orthonormal(Y))
    stack = as_tensor(np.stack([made(np.arange(1, D + 1) ** -0.8, seed) for seed in range(9)]))
    with copies_to_host() as copies:
        linalg.leading(stack, FIRST)
    assert copies["arrays"] == len(calls) + 1
    assert len(calls) < 10


def test_too_little_memory_is_a_memory_error(monkeypatch):
    def no_room(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(linalg.mmap, "mmap", no_room)
    assert linalg.mapped(8, np.float64).sum() == 0  # which numpy makes
    with pytest.raises(MemoryError, match="unable to allocate 8,388,608 bytes"):
        linalg.mapped(1 << 20, np.float64)


@each_place
def test_two_matrices_and_an_outer_product_are_added(place):
    random = np.random.default_rng(0)
    a, b, root = (random.standard_normal(s) for s in ((150, 150), (150, 150), 150))
    found = linalg.to_numpy(linalg.sum_with_outer(place(a), place(b), place(root)))
    np.testing.assert_allclose(found, a + b + np.outer(root, root), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("K", [1, 300])
def test_rows_are_compared_with_many_centroids_in_parts(K, monkeypatch):
    random = np.random.default_rng(0)
    X, C = random.standard_normal((1000, 5)), random.standard_normal((K, 5))
    monkeypatch.setattr(linalg, "block_rows", lambda width: max(1, 3000 // width))
    heights, compared = [], linalg._nearest
    monkeypatch.setattr(linalg, "_nearest", lambda Y, C: heights.append(len(Y)) or compared(Y, C))
    labels, distances = linalg.nearest_about(X, C)
    expected = ((X[:, None] - C) ** 2).sum(axis=2)
    assert max(heights) * K <= 2 * 3000
    assert sum(heights) == len(X)
    assert np.array_equal(labels, expected.argmin(axis=1))
    assert np.allclose(distances, expected.min(axis=1), rtol=0, atol=1e-12 * expected.max())


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("d", [1, 64, 100, 300])
def test_added_products_are_complete_and_symmetric(d, own, monkeypatch):
    monkeypatch.setattr(linalg, "TRIANGLES", 0 if own else 1000)
    total = np.zeros((d, d))
    blocks = np.random.default_rng(0).integers(-9, 9, (2, 50, d)).astype(np.float32)
    for rows in blocks:
        linalg.add_product(total, rows)
    linalg.complete(total)
    exact = np.concatenate(blocks).astype(np.float64)
    assert np.array_equal(total, exact.T @ exact)


@pytest.mark.parametrize("lay", [np.asfortranarray, lambda X: np.repeat(X, 2, axis=1)[:, ::2]])
def test_rows_are_gathered_without_a_copy_of_all(lay, monkeypatch):
    X = np.arange(60.0).reshape(12, 5)
    monkeypatch.setattr(np, "take", lambda *given, **options: pytest.fail("which copies all of X"))
    numbers = np.array([3, 1, 11, 1])
    assert np.array_equal(linalg.gathered(lay(X), numbers), X[numbers])


def test_arrays_of_any_size_are_zeros_that_can_be_written():
    sizes = [0, 3, linalg.MAPPED_BYTES, linalg.LARGE_PAGE + 5, linalg.POPULATED_BYTES + 1]
    for size in sizes:
        found = linalg.mapped(size, np.uint8)
        assert found.shape == (size,)
        assert not found.any()
        found[:] = 7
        assert (found == 7).all()

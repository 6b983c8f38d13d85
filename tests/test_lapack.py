"""A few eigenvectors: those of numpy, found while other threads go on."""

import ctypes
import threading

import numpy as np
import pytest

from isotropy import lapack


def matrix(n, rank=None):
    rows = np.random.default_rng(n).standard_normal((rank or 2 * n, n))
    return rows.T @ rows


@pytest.mark.parametrize(("n", "first", "last"), [(1, 0, 0), (5, 0, 4), (40, 30, 39), (60, 0, 6)])
@pytest.mark.parametrize("own", [True, False])
def test_eigenvectors_are_those_of_numpy(n, first, last, own, monkeypatch):
    if not own:
        monkeypatch.setattr(lapack, "_dsyevr", lambda: None)
    A = matrix(n)
    before = A.copy()
    values, vectors = lapack.eigh_between(A, first, last)
    expected = np.linalg.eigvalsh(A)
    rounding = 8 * n * np.finfo(float).eps * expected[-1]
    assert np.allclose(values, expected[first : last + 1], rtol=0, atol=rounding)
    assert np.abs(A @ vectors - vectors * values).max() <= rounding
    assert np.allclose(vectors.T @ vectors, np.eye(last - first + 1), atol=n * 1e-14)
    assert np.array_equal(A, before)


def test_repeated_and_zero_eigenvalues():
    values, vectors = lapack.eigh_between(np.diag([0.0, 0.0, 2.0, 2.0]), 1, 3)
    assert np.allclose(values, [0, 2, 2])
    assert np.allclose(vectors.T @ vectors, np.eye(3))


def test_what_is_not_finite_is_refused():
    A = matrix(4)
    A[0, 0] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        lapack.eigh_between(A, 0, 1)


def test_the_routine_is_called_without_pythons_lock():
    found = lapack._dsyevr()
    assert found is None or not found._flags_ & ctypes._FUNCFLAG_PYTHONAPI


def test_threads_give_the_same_digits():
    A, found = matrix(80), []
    expected = lapack.eigh_between(A, 70, 79)
    threads = [
        threading.Thread(target=lambda: found.append(lapack.eigh_between(A, 70, 79)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for values, vectors in found:
        assert np.array_equal(values, expected[0])
        assert np.array_equal(vectors, expected[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (300, 65), (20, 130)])
def test_a_lower_product_is_that_of_numpy(shape, dtype):
    X = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    n_rows, n = shape
    out = np.full((n, n), np.nan, dtype)
    if not lapack.lower_product(X, out):
        pytest.skip("BLAS counts with integers of 64 bits here")
    expected = X.astype(np.float64).T @ X.astype(np.float64)
    rounding = n_rows * np.finfo(dtype).eps * np.square(X).sum(axis=0).max()
    assert np.abs(np.tril(out) - np.tril(expected)).max() <= rounding
    assert np.isnan(out[np.triu_indices(n, 1)]).all()


def test_rows_that_are_not_laid_out_one_after_another_are_left_to_numpy():
    X = np.arange(24.0).reshape(4, 6)
    for refused in (X[:, ::2], X[::2, :5], X.T, X.astype(">f8"), X.astype(np.float16)):
        assert not lapack.lower_product(refused, np.zeros((refused.shape[1],) * 2))

"""Routines of LAPACK and BLAS that do not hold up the other threads of Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

Floats = NDArray[np.float64]


def eigh_between(symmetric: Floats, first: int, last: int) -> tuple[Floats, Floats]:
    """Eigenvalues `first` to `last` in ascending order, counted from 0, and their eigenvectors.

    `scipy.linalg.eigh` does the same, but holds Python's lock while it does. This calls the same
    routine of LAPACK through the pointer that scipy publishes for compiled code.
    """
    found = _dsyevr()
    if found is None or not np.isfinite(symmetric).all():
        values, vectors = scipy.linalg.eigh(symmetric, subset_by_index=(first, last))
        return values, vectors
    n, n_values = len(symmetric), last - first + 1
    A = np.array(symmetric, dtype=np.float64, order="F")
    values, vectors = np.empty(n), np.empty((n, n_values), order="F")
    support, none = np.empty(2 * n_values, np.int32), np.zeros(1)
    size, low, high, count, info = (np.array([i], np.int32) for i in (n, first + 1, last + 1, 0, 0))

    def call(work: Floats, ints: NDArray[np.int32], n_work: int, n_ints: int) -> None:
        lengths = np.array([n_work, n_ints], np.int32)
        given = (size, A, size, none, none, low, high, none, count, values, vectors, size, support)
        rest = (work, lengths[:1], ints, lengths[1:], info)
        found(b"V", b"I", b"L", *(part.ctypes.data for part in (*given, *rest)))
        if info[0] != 0:
            raise np.linalg.LinAlgError(f"dsyevr ended with {info[0]}")

    work, ints = np.empty(1), np.empty(1, np.int32)
    call(work, ints, -1, -1)  # which says how much room it wants
    work, ints = np.empty(int(work[0])), np.empty(int(ints[0]), np.int32)
    call(work, ints, len(work), len(ints))
    if count[0] != n_values:
        raise np.linalg.LinAlgError(f"dsyevr found {count[0]} of {n_values} eigenvalues")
    return values[:n_values], vectors


def lower_product(X: NDArray[Any], out: NDArray[Any]) -> bool:
    """Write the lower triangle of X'X to `out`, diagonal included. False if it can't be done.

    numpy's product of X' and X calls the same routine, and then copies the triangle to the other
    one, number by number.
    """
    found = _syrk(X.dtype)
    if found is None or not (X.flags.c_contiguous and X.flags.aligned):
        return False
    n_rows, n = X.shape
    sizes, factors = np.array([n, n_rows], np.int32), np.array([1, 0], X.dtype)
    given = (sizes, sizes[1:], factors, X, sizes, factors[1:], out, sizes)
    found(b"U", b"N", *(part.ctypes.data for part in given))  # which takes rows for columns
    return True


@functools.cache
def _dsyevr() -> Callable[..., None] | None:
    return _routine(cython_lapack, "dsyevr", 21, (3, 5, 8, 9, 11, 14, 15, 17, 18, 19, 20))


@functools.cache
def _syrk(dtype: np.dtype[Any]) -> Callable[..., None] | None:
    name = {np.dtype(np.float32): "ssyrk", np.dtype(np.float64): "dsyrk"}.get(dtype)
    return None if name is None else _routine(cython_blas, name, 10, (2, 3, 6, 9))


def _routine(
    module: Any, name: str, n_arguments: int, integers: tuple[int, ...]
) -> Callable[..., None] | None:
    """A routine, which is called without Python's lock; None if its integers are not ints."""
    capsule: Any = module.__pyx_capi__[name]
    name_kind = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    pointer_kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    signature = name_kind(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    pointer = pointer_kind(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, signature)
    kinds = signature.decode().partition("(")[2].rstrip(")").split(",")
    if len(kinds) != n_arguments or any(kinds[i].strip() != "int *" for i in integers):
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(pointer)

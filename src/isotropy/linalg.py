"""Pure array functions, for numpy arrays and torch tensors alike."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import array_api_compat
import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from isotropy.checks import Array, is_tensor

_limiting = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread. The limit is global: the first to set it also lifts it."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller(len(sys.modules)).limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@functools.lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:
    """The controller of the loaded libraries; made again after new imports."""
    return ThreadpoolController()


Floats = NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 21  # a block and its few temporaries stay in the last-level cache
USUAL = 40  # numbers between 2^-40 and 2^40 have squares in the range of float32
SUMMED_ROWS = 256  # rows that are summed in their own dtype before float64 takes over
ONE_THREAD = 1024  # features up to which a decomposition is made by one thread
DRIFT = 1e5  # mean energy over spectral energy past which the mean is split off (see below)


def namespace(X: Array) -> Any:
    return array_api_compat.array_namespace(X)


def native(X: Array) -> Array:
    """X without autograd, as numpy if it is on the CPU, in float32 or float64.

    float64 and 32- and 64-bit integers become float64, everything narrower float32.
    """
    if is_tensor(X):
        X = X.detach()
        name = str(X.dtype).removeprefix("torch.")
        wide = name in ("float64", "int32", "int64", "uint32", "uint64")
        if name not in ("float32", "float64"):
            X = X.double() if wide else X.float()
        return X.numpy() if X.device.type == "cpu" else X
    X = np.asarray(X)
    if X.dtype in (np.float32, np.float64):
        return X
    wide = X.dtype.itemsize > 2 if X.dtype.kind in "iu" else X.dtype.itemsize > 4
    return X.astype(np.float64 if wide else np.float32)


def to_numpy(X: Array) -> NDArray[Any]:
    return np.asarray(X.detach().cpu().numpy() if is_tensor(X) else X)


def on_device(X: NDArray[Any], device: str) -> Array:
    """X as it is for "cpu", otherwise as a tensor on the device."""
    if device == "cpu":
        return X
    import torch

    return torch.from_numpy(X).to(device)


def like(values: Array, X: Array) -> Array:
    """values in the namespace, on the device and in the dtype of X."""
    if not is_tensor(X):
        return np.asarray(to_numpy(values), dtype=X.dtype)
    xp = namespace(X)
    return xp.asarray(values, dtype=X.dtype, device=X.device)


def double(X: Array) -> Array:
    """X in float64, on its device."""
    xp = namespace(X)
    return xp.astype(X, xp.float64, copy=False)


def smallest(keys: Array, k: int) -> Array:
    """Indices of the k smallest keys, unordered."""
    if is_tensor(keys):
        return keys.topk(k, largest=False, sorted=False).indices
    return np.argpartition(keys, k - 1)[:k]


def index(numbers: NDArray[np.int64], X: Array) -> Array:
    """Row numbers as an index into X, on its device."""
    return namespace(X).asarray(numbers, device=array_api_compat.device(X))


def place(sums: Array, X: Array) -> Array:
    """float64 sums in the namespace and on the device of X."""
    xp = namespace(X)
    return xp.asarray(sums, dtype=xp.float64, device=array_api_compat.device(X))


def zeros(shape: int | tuple[int, ...], X: Array) -> Array:
    """float64 zeros in the namespace and on the device of X."""
    xp = namespace(X)
    return xp.zeros(shape, dtype=xp.float64, device=array_api_compat.device(X))


def empty(shape: tuple[int, ...], X: Array) -> Array:
    """Uninitialised room in the namespace, on the device and in the dtype of X."""
    return namespace(X).empty(shape, dtype=X.dtype, device=array_api_compat.device(X))


def blocks(
    X: Array, w: Floats | None = None, on_device: int = 64
) -> Iterator[tuple[int, Array, Array | None]]:
    """(first row, rows, weights in float64) of consecutive blocks of X.

    Devices prefer fewer, larger products: their blocks are `on_device` times as large.
    """
    rows = max(256, BLOCK_ELEMENTS // X.shape[1])
    if is_tensor(X):
        rows *= on_device
    for start in range(0, X.shape[0], rows):
        block = X[start : start + rows]
        yield start, block, None if w is None else place(w[start : start + rows], block)


def column_sums(X: Array, w: Array | None = None) -> Array:
    """sum_i w_i x_i in float64; 256 rows at a time are summed in their own dtype."""
    xp = namespace(X)
    if w is None:
        w = xp.ones(X.shape[0], dtype=X.dtype, device=array_api_compat.device(X))
    whole = X.shape[0] // SUMMED_ROWS * SUMMED_ROWS
    total = double(w[whole:] @ X[whole:])
    if whole:
        parts = xp.reshape(X[:whole], (-1, SUMMED_ROWS, X.shape[1]))
        sums = xp.reshape(w[:whole], (-1, 1, SUMMED_ROWS)) @ parts
        total = total + xp.sum(sums[:, 0], axis=0, dtype=xp.float64)
    return total


def label_sums(X: Array, labels: Array, n_labels: int, w: Array | None = None) -> Array:
    """sum w_i x_i over the rows of each label, in float64, of shape (n_labels, n_features).

    On the CPU 256 rows at a time, or as many as there are labels, are summed in their own dtype.
    """
    xp = namespace(X)
    if w is None:
        w = xp.ones(X.shape[0], dtype=X.dtype, device=array_api_compat.device(X))
    if is_tensor(X):
        member = xp.astype(labels[:, None] == index(np.arange(n_labels), X), X.dtype)
        return double((member * w[:, None]).T @ X)
    parts = np.arange(len(X)) // max(SUMMED_ROWS, n_labels)
    shape = ((int(parts[-1]) + 1) * n_labels, len(X))
    codes = (w, labels + n_labels * parts, np.arange(len(X) + 1))
    sums = scipy.sparse.csc_array(codes, shape=shape) @ X
    return sums.reshape(-1, n_labels, X.shape[1]).sum(axis=0, dtype=np.float64)


def squared_norms(X: Array) -> Array:
    """||x_i||^2 of every row, in the dtype of X."""
    if is_tensor(X):
        return namespace(X).linalg.vector_norm(X, axis=1) ** 2  # one pass, nothing kept
    return np.einsum("ij,ij->i", X, X)


def largest(X: Array) -> float:
    """max |x| over all entries."""
    xp = namespace(X)
    return float(xp.max(xp.abs(X)))


def exponent_of(size: float) -> int:
    """e with size in [2^(e-1), 2^e), zero for zero; 2.0**e is a float."""
    return min(math.frexp(size)[1], 1023)


def scaled(X: Array, exponent: Any) -> Array:
    """X / 2^exponent, exact within the range of floats; `exponent` is one int, or one per row."""
    if isinstance(exponent, int):
        if exponent == 0:
            return X
        most = 1000 if X.dtype == namespace(X).float64 else 120  # 2^149, for one, is no float32
        with np.errstate(over="ignore", under="ignore"):
            while exponent:
                step = max(-most, min(most, exponent))
                X, exponent = X * 2.0**-step, exponent - step
        return X
    xp = namespace(X)
    half = exponent // 2
    two = xp.asarray(2.0, dtype=X.dtype, device=array_api_compat.device(X))
    for part in (half, exponent - half):
        factors = two ** xp.astype(-part, X.dtype)
        X = X * (factors[:, None] if X.ndim == 2 else factors)
    return X


def row_exponents(X: Array) -> Array:
    """The power of two next above the largest entry of every row; zero for zero rows."""
    xp = namespace(X)
    tops = xp.max(xp.abs(X), axis=1)
    exponents = tops.frexp().exponent if is_tensor(tops) else np.frexp(tops)[1]
    return xp.astype(exponents, xp.int64)


def usual(X: Array) -> tuple[float, float]:
    """Norms between which squares and the weights of rows stay in the range of the dtype."""
    reach = 30.0 if X.dtype == namespace(X).float32 else 400.0
    return 2.0**-reach, 2.0**reach


def lengths(X: Array) -> Array:
    """||x_i|| of every row in float64, at any scale; infinite if it overflows."""
    xp = namespace(X)
    with np.errstate(over="ignore"):
        norms = xp.sqrt(squared_norms(X))
        low, high = usual(X)
        if bool(((norms > low) & (norms < high)).all()):
            return double(norms)
        exponents = row_exponents(X)
        norms = double(xp.sqrt(squared_norms(scaled(X, exponents))))
        return scaled(norms, -exponents)


def nonzero_rows(X: Array) -> NDArray[np.int64]:
    """Numbers of the rows that are not zero."""
    xp = namespace(X)
    return np.flatnonzero(to_numpy(xp.any(X != 0, axis=1)))


def unit_rows(X: Array) -> Array:
    """Rows scaled to length one; zero rows stay zero."""
    xp = namespace(X)
    X = scaled(X, row_exponents(X))  # keeps the square of any float in range
    norms = xp.sqrt(squared_norms(X))[:, None]
    return X / xp.where(norms > 0, norms, xp.ones_like(norms))


def eigh(symmetric: Floats, device: str = "cpu") -> tuple[Floats, Floats]:
    """Eigenvalues in descending order and the eigenvectors as columns, made on a device."""
    if device == "cpu":
        with threads_for(len(symmetric)):
            values, vectors = scipy.linalg.eigh(symmetric, driver="evd", check_finite=False)
    else:
        moved = on_device(symmetric, device)
        values, vectors = map(to_numpy, namespace(moved).linalg.eigh(moved))
    return values[::-1], vectors[:, ::-1]


def threads_for(n_features: int) -> contextlib.AbstractContextManager[None]:
    """One thread for a small decomposition.

    LAPACK's threads wait for each other thousands of times, which is slow if other work takes a
    core: 256 x 256 then took 0.8 to 1.5 s, and 12 ms in one thread.
    """
    return one_blas_thread() if n_features <= ONE_THREAD else contextlib.nullcontext()


def noise_of(values: Floats, resolution: float, mean: float | None = None) -> float:
    """How far rounding moves the descending eigenvalues of a sum of products.

    `mean` is the mean eigenvalue of what was summed, if it is not the mean of `values`.
    """
    mean = float(values.mean()) if mean is None else mean
    decomposition = len(values) * float(np.finfo(np.float64).eps) * float(values[0])
    products = 8 * resolution * min(len(values) ** 0.5 * mean, float(values[0]))
    return float(max(decomposition, products))


def resolved(values: Floats, resolution: float) -> Floats:
    """Eigenvalues, with those below `noise_of` set to zero."""
    return np.where(values > noise_of(values, resolution), values, 0.0)


def gram_eigh(
    scatter: Floats, weight: float, mean: Floats, device: str = "cpu"
) -> tuple[Floats, Floats]:
    """Eigenvalues (descending) and eigenvectors of X'X = scatter + weight mean mean'.

    If the mean dwarfs the scatter, the rounding of the largest eigenvalue of X'X would hide the
    small ones. The direction of the mean is then split off by a reflection, and the rest corrected
    by the Schur complement. The error is of the order of the squared ratio of scatter to mean
    energy, below 1e-10 of any eigenvalue.
    """
    energy = weight * float(mean @ mean)
    if len(mean) == 1 or not energy > DRIFT * float(np.trace(scatter)):
        return eigh(scatter + weight * np.outer(mean, mean), device)
    v = mean / np.linalg.norm(mean)
    sign = 1.0 if v[0] >= 0 else -1.0
    v[0] += sign
    v /= np.linalg.norm(v)  # H = I - 2vv' maps the mean's direction to -sign e_0
    reflected = scatter - 2 * np.outer(v, v @ scatter)
    reflected -= 2 * np.outer(reflected @ v, v)
    top = energy + reflected[0, 0]
    coupling = reflected[1:, 0] / top
    values, inner = eigh(reflected[1:, 1:] - np.outer(coupling, reflected[1:, 0]), device)
    basis = np.zeros_like(scatter)
    basis[0, 0], basis[1:, 0] = 1.0, coupling
    basis[1:, 1:], basis[0, 1:] = inner, -coupling @ inner
    basis /= np.linalg.norm(basis, axis=0)
    basis -= 2 * np.outer(v, v @ basis)
    return np.concatenate([[top + coupling @ reflected[1:, 0]], values]), basis


def nearest(X: Array, centroids: Array) -> tuple[Array, Array]:
    """(index of the nearest centroid, squared distance to it) for every row."""
    origin = centroids.mean(0)
    return nearest_about(X - origin, centroids - origin)


def nearest_about(Y: Array, C: Array) -> tuple[Array, Array]:
    """`nearest` for rows and centroids less a point in the middle of the centroids."""
    xp = namespace(Y)
    exponent = exponent_of(largest(C))
    exponent = exponent if abs(exponent) > USUAL else 0
    labels, distances = _nearest(scaled(Y, exponent), scaled(C, exponent))
    if not bool(xp.all(xp.isfinite(distances))):  # rows far larger than the centroids
        exponent = exponent_of(largest(Y))
        labels, distances = _nearest(scaled(Y, exponent), scaled(C, exponent))
    return labels, scaled(distances, -2 * exponent)


def _nearest(Y: Array, C: Array) -> tuple[Array, Array]:
    xp = namespace(Y)
    scores = Y @ C.T
    scores -= squared_norms(C) / 2
    labels = xp.argmax(scores, axis=1)
    best = xp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return labels, xp.clip(squared_norms(Y) - 2 * best, 0, None)

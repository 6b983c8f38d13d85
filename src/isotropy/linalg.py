"""Pure array functions, for numpy arrays and torch tensors alike."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from isotropy import kernels, lapack
from isotropy.checks import Array, is_tensor
from isotropy.kernels import SUMMED_ROWS
from isotropy.threads import one_blas_thread

Floats = NDArray[np.float64]

BLOCK_ELEMENTS = 3 << 19  # a block and a copy of it stay in the last-level cache
USUAL = 40  # numbers between 2^-40 and 2^40 have squares in the range of float32
MAPPED_BYTES = 1 << 20  # of an array that is mapped
LARGE_PAGE = 1 << 21
POPULATE = 23  # MADV_POPULATE_WRITE of Linux 5.14
POPULATED_BYTES = 1 << 24  # of an array, up to which it is faster to take all of its pages at once
PRIVATE: dict[str, Any] = (  # a process that is forked must not share it; Windows does not fork
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)
HELD_BYTES = 1 << 26  # of the largest room that is kept for the next block
MEMBERS = 1 << 21  # marks of which row has which label, at a time
MEMBERS_ON_DEVICE = 1 << 24
FEW_LABELS = 64  # up to which sums by label are a product
OUTER_ROWS = 64  # of a matrix to which an outer product is added at a time
TRIANGLES = 512  # features from which the other triangle of a product takes time to copy
ADDED_ROWS = 256  # of a matrix to which a lower triangle is added at a time
ONE_THREAD = 1024  # features up to which a decomposition is made by one thread
FILTERS = 40  # after which a subspace iteration gives up
GROWTH = 1e8  # of one direction over another in a filter, so that rounding leaves both
MOST_DEGREE = 10  # of a filter
DRIFT = 1e5  # mean energy over spectral energy past which the mean is split off (see below)


def namespace(X: Array) -> Any:
    """The functions for arrays like X."""
    if type(X) is np.ndarray:  # at once: it is asked for many times a block
        return array_api_compat.numpy
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
    """X as an array; large tensors are copied from a GPU into large pages, see `mapped`."""
    if not is_tensor(X):
        return np.asarray(X)
    X = X.detach()
    if not (X.is_cuda and X.nbytes >= MAPPED_BYTES):
        return np.asarray(X.cpu().numpy())
    import torch

    room = torch.from_numpy(mapped(X.nbytes, np.uint8)).view(X.dtype).reshape(X.shape)
    return np.asarray(room.copy_(X).numpy())


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


def count(n: int, X: Array) -> Array:
    """0 to n - 1 in the namespace and on the device of X."""
    return namespace(X).arange(n, device=array_api_compat.device(X))


def place(sums: Array, X: Array) -> Array:
    """float64 sums in the namespace and on the device of X."""
    xp = namespace(X)
    return xp.asarray(sums, dtype=xp.float64, device=array_api_compat.device(X))


def mapped(size: int, dtype: Any) -> NDArray[Any]:
    """Zeros in memory that goes back to the system when it is freed.

    What threads allocate otherwise, malloc keeps for each of them: 170 MB with 16 threads. On Linux
    it comes in pages of 2 MB as far as they are filled, and where it is not too large with all
    pages at once: a first pass of `measure` takes 5 to 9 % longer if they come one by one.
    """
    n_bytes = size * np.dtype(dtype).itemsize
    if n_bytes < MAPPED_BYTES:
        return np.zeros(size, dtype)
    try:
        memory = mmap.mmap(-1, n_bytes + LARGE_PAGE, **PRIVATE)  # what is not touched takes nothing
    except OSError as error:  # as numpy says it
        raise MemoryError(f"unable to allocate {n_bytes:,} bytes") from error
    first = -np.frombuffer(memory, np.uint8).ctypes.data % LARGE_PAGE
    if n_bytes >= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = np.frombuffer(memory, np.uint8).ctypes.data + first
        advise = _madvise()  # a kernel that knows no such advice does not follow it
        advise(start, n_bytes // LARGE_PAGE * LARGE_PAGE, mmap.MADV_HUGEPAGE)
        if n_bytes <= POPULATED_BYTES:
            advise(start, n_bytes, POPULATE)
    return np.frombuffer(memory, dtype, size, first)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    """The call of Linux. That of `mmap` holds Python's lock while pages are taken."""
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def zeros(shape: int | tuple[int, ...], X: Array) -> Array:
    """float64 zeros in the namespace and on the device of X."""
    xp = namespace(X)
    if not is_tensor(X):
        shape = (shape,) if isinstance(shape, int) else shape
        return mapped(math.prod(shape), np.float64).reshape(shape)
    return xp.zeros(shape, dtype=xp.float64, device=array_api_compat.device(X))


def empty(shape: tuple[int, ...], X: Array) -> Array:
    """Uninitialised room in the namespace, on the device and in the dtype of X."""
    return namespace(X).empty(shape, dtype=X.dtype, device=array_api_compat.device(X))


_rooms = threading.local()


def room(shape: tuple[int, ...], X: Array, name: str = "rows") -> Array:
    """Uninitialised room in the dtype of X, lent until this thread asks again by that name.

    Memory that is given back and taken again costs more than the sums that are made in it.
    """
    if is_tensor(X):
        return empty(shape, X)
    size = math.prod(shape)
    if size * X.dtype.itemsize > HELD_BYTES:
        return mapped(size, X.dtype).reshape(shape)
    held = getattr(_rooms, f"{name} {X.dtype}", None)
    if held is None or held.size < size:
        held = mapped(size, X.dtype)
        setattr(_rooms, f"{name} {X.dtype}", held)
    return held[:size].reshape(shape)


def leave_rooms() -> None:
    """Give back what `room` has lent to this thread."""
    _rooms.__dict__.clear()


def gathered(X: Array, numbers: Array) -> Array:
    """Rows of X by their numbers, in a `room`."""
    if is_tensor(X):
        return namespace(X).take(X, numbers, axis=0)
    place = room((len(numbers), X.shape[1]), X, "gathered")
    if X.flags.c_contiguous:
        return np.take(X, numbers, axis=0, out=place, mode="clip")  # "raise" takes another copy
    place[...] = X[numbers]  # take would copy all of X
    return place


def shifted(X: Array, origin: Array) -> Array:
    """X - origin, in a `room`."""
    return namespace(X).subtract(X, origin, out=room(X.shape, X))


def shifted_sums(X: Array, origin: Array, w: Array | None = None) -> tuple[Array, ...]:
    """(Y, radius, total, third): y = x - origin in a `room`, ||y||^2, sum w y, sum w ||y||^2 y."""
    if is_tensor(X) and w is None and (found := kernels.shifted_sums(X, origin)) is not None:
        return found
    Y = shifted(X, origin)
    radius = squared_norms(Y)
    heights = [namespace(X).ones_like(radius), radius] if w is None else [w, w * radius]
    total, third = weighted_sums(Y, namespace(X).stack(heights))
    return Y, radius, total, third


def unit_sums(X: Array, w: Array | None = None) -> tuple[Array, ...]:
    """(norms, unit_sum, unit_square_sum): ||x||, sum w u and sum w^2 u^2 with u = x / ||x||.

    Zero rows have no u.
    """
    xp = namespace(X)
    if is_tensor(X) and w is None and (found := kernels.unit_sums(X)) is not None:
        return xp.sqrt(found[0]), *found[1:]
    squares = xp.multiply(X, X, out=room(X.shape, X))
    norms = xp.sqrt(squares @ xp.ones_like(X[0]))
    inverse = 1 / xp.where(norms > 0, norms, xp.inf)
    inverse = inverse if w is None else w * inverse
    return norms, column_sums(X, inverse), column_sums(squares, inverse**2)


def exp_sums(scores: Array, high: Array | None = None) -> tuple[Array, Array]:
    """Sums of exp(s - high) and of exp(high - s) over each column of the scores, which are lost."""
    if is_tensor(scores) and (found := kernels.exp_sums(scores, high)) is not None:
        return found
    xp = namespace(scores)
    if high is not None:
        scores -= high
    plus = column_sums(xp.exp(scores, out=scores))
    return plus, column_sums(xp.reciprocal(scores, out=scores))


def add_product(total: Array, X: Array) -> None:
    """Add X'X, made in the dtype of X, to a matrix in float64, whose upper triangle is left open.

    `complete` fills it.
    """
    if is_tensor(X):
        total += kernels.symmetric_product(X)
        return
    product = room(total.shape, X, "product")
    if len(total) < TRIANGLES or not lapack.lower_product(X, product):
        np.matmul(X.T, X, out=product)
    for part in slices(len(total), ADDED_ROWS):
        total[part, : part.stop] += product[part, : part.stop]


def complete(total: Array) -> None:
    """Copy the lower triangle of a matrix to the upper one, after `add_product`."""
    if is_tensor(total):
        return  # it is there
    for part in slices(len(total), OUTER_ROWS):
        total[: part.start, part] = total[part, : part.start].T
        square = np.tril(total[part, part])
        total[part, part] = square + np.tril(square, -1).T


def add_outer(total: Array, a: Array, b: Array) -> None:
    """Add a b' to a matrix, without another of its size."""
    if is_tensor(total):
        total.addr_(a, b)
        return
    for part in slices(len(total), OUTER_ROWS):
        total[part] += a[part, None] * b


def sum_with_outer(one: Array, other: Array, root: Array) -> Array:
    """one + other + root root', for symmetric matrices in float64."""
    if is_tensor(one):
        return (one + other).addr_(root, root)
    total = zeros(one.shape, one)
    for part in slices(len(total), OUTER_ROWS):  # which stay in the cache
        np.add(one[part], other[part], out=total[part])
        total[part] += root[part, None] * root
    return total


def block_rows(n_features: int) -> int:
    """Rows of a block, at most."""
    return max(256, BLOCK_ELEMENTS // n_features)


def blocks(
    X: Array, w: Floats | None = None, on_device: int = 64, on_host: int = 1
) -> Iterator[tuple[int, Array, Array | None]]:
    """(first row, rows, weights in float64) of consecutive blocks of X, all of the same size.

    Devices prefer fewer, larger products: their blocks are `on_device` times as large, and those
    of arrays `on_host` times.
    """
    rows = block_rows(X.shape[1]) * (on_device if is_tensor(X) else on_host)
    rows = max(1, -(-X.shape[0] // max(1, -(-X.shape[0] // rows))))
    for start in range(0, X.shape[0], rows):
        block = X[start : start + rows]
        yield start, block, None if w is None else place(w[start : start + rows], block)


def slices(n: int, height: int) -> list[slice]:
    """Consecutive parts of n rows, of `height` rows each, but at least one."""
    height = max(1, height)
    return [slice(start, min(start + height, n)) for start in range(0, n, height)]


def column_sums(X: Array, w: Array | None = None) -> Array:
    """sum_i w_i x_i in float64; 256 rows at a time are summed in their own dtype."""
    if w is None:
        w = namespace(X).ones(X.shape[0], dtype=X.dtype, device=array_api_compat.device(X))
    return weighted_sums(X, w[None])[0]


def weighted_sums(X: Array, weights: Array) -> Array:
    """weights @ X in float64; 256 rows at a time are summed in their own dtype."""
    xp, whole = namespace(X), X.shape[0] // SUMMED_ROWS * SUMMED_ROWS
    total = double(weights[:, whole:] @ X[whole:])
    if whole:
        parts = xp.reshape(X[:whole], (-1, SUMMED_ROWS, X.shape[1]))
        shape = (weights.shape[0], -1, SUMMED_ROWS)
        heights = xp.permute_dims(xp.reshape(weights[:, :whole], shape), (1, 0, 2))
        total += xp.sum(heights @ parts, axis=0, dtype=xp.float64)
    return total


def label_sums(
    X: Array, labels: Array, n_labels: int, w: Array | None = None
) -> tuple[Array, Array]:
    """(sum w_i, sum w_i x_i) over the rows of each label, in float64.

    Their shapes are (n_labels,) and (n_labels, n_features). Labels of shape (n_samples, n_sets)
    have sums of shape (n_sets, n_labels) and (n_sets, n_labels, n_features). On the CPU 256 rows at
    a time, or as many as there are labels, are summed in their own dtype.
    """
    xp, (n, d) = namespace(X), X.shape
    if w is None:
        w = xp.ones(n, dtype=X.dtype, device=array_api_compat.device(X))
    sets = xp.reshape(labels, (n, -1))
    n_sets = sets.shape[1]
    if is_tensor(X):
        weights, sums = zeros((n_sets, n_labels), X), zeros((n_sets * n_labels, d), X)
        for part in slices(n, MEMBERS_ON_DEVICE // (n_sets * n_labels)):
            there = xp.astype(sets[part, :, None] == count(n_labels, X), X.dtype)
            member = there * w[part, None, None]
            weights += xp.sum(member, axis=0, dtype=xp.float64)
            sums += double(xp.reshape(member, (member.shape[0], -1)).T @ X[part])
    elif n_sets * n_labels <= FEW_LABELS:  # a product does more, but in fewer and larger steps
        weights, sums = zeros((n_sets, n_labels), X), zeros((n_sets * n_labels, d), X)
        for part in slices(n, MEMBERS // (n_sets * n_labels)):
            member = (sets[part].T[:, None] == np.arange(n_labels)[:, None]) * w[part]
            weights += member.sum(axis=2, dtype=np.float64)
            sums += weighted_sums(X[part], member.reshape(n_sets * n_labels, -1))
    else:
        parts = np.arange(n) // max(SUMMED_ROWS, n_labels)
        codes = sets + n_labels * (np.arange(n_sets) + n_sets * parts[:, None])
        ends = np.arange(0, n * n_sets + 1, n_sets)
        shape = ((int(parts[-1]) + 1) * n_sets * n_labels, n)
        found = scipy.sparse.csc_array((np.repeat(w, n_sets), codes.ravel(), ends), shape=shape) @ X
        sums = found.reshape(-1, n_sets * n_labels, d).sum(axis=0, dtype=np.float64)
        together = (sets + n_labels * np.arange(n_sets)).ravel()
        weights = np.bincount(together, np.repeat(w, n_sets), n_sets * n_labels)
    shape = (*labels.shape[1:], n_labels)
    return xp.reshape(weights, shape), xp.reshape(sums, (*shape, d))


def by_label(labels: Array, n_labels: int) -> tuple[Array, NDArray[np.int64]]:
    """(numbers of the rows sorted by label, where in them each label begins and the last ends).

    Rows of one label keep their order. On a device, this takes one copy to the host.
    """
    xp = namespace(labels)
    if n_labels <= np.iinfo(np.int16).max:
        labels = xp.astype(labels, xp.int16)  # sorted by radix
    order = xp.argsort(labels, stable=True)
    places = xp.astype(count(n_labels + 1, labels), labels.dtype)
    return order, to_numpy(xp.searchsorted(labels[order], places))


def squared_norms(X: Array) -> Array:
    """||x_i||^2 of every row, in the dtype of X."""
    if is_tensor(X):
        return namespace(X).linalg.vector_norm(X, axis=1) ** 2  # one pass, nothing kept
    return np.einsum("ij,ij->i", X, X)


def largest(X: Array) -> float:
    """max |x| over all entries."""
    if is_tensor(X):
        return float(X.abs().max())  # one copy to the host
    return float(max(-np.min(X), np.max(X)))  # no copy of X


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
            values, vectors = np.linalg.eigh(symmetric)  # which other threads can run beside
    else:
        moved = on_device(symmetric, device)
        values, vectors = map(to_numpy, namespace(moved).linalg.eigh(moved))
    return values[::-1], vectors[:, ::-1]


def leading(symmetric: Array, n: int) -> tuple[Array, Array, NDArray[np.bool_]]:
    """The n largest eigenvalues of each matrix of a stack, the eigenvectors, and whether found.

    For devices, which multiply many matrices as fast as they read them, and decompose them one by
    one. The matrices, of shape (m, d, d), are in float64, have no negative eigenvalues, and numbers
    whose squares are floats.

    Returns
    -------
    values : array of shape (m, n)
        In descending order.
    vectors : array of shape (m, d, n)
    found : numpy array of shape (m,)
        Whether |A v - value v| is within a few roundings of |A| for all n pairs. If not, the matrix
        must be decomposed.

    Notes
    -----
    Subspace iteration with Chebyshev polynomials, which grow fastest outside the interval from zero
    to the least value that the subspace has.
    """
    xp, (m, d, _) = namespace(symmetric), symmetric.shape
    first, vectors = zeros((m, n), symmetric), zeros((m, d, n), symmetric)
    width, eps = min(d, 2 * n + 8), float(np.finfo(np.float64).eps)
    start = np.linalg.qr(np.random.default_rng(0).standard_normal((d, width))).Q
    basis = place(np.broadcast_to(start, (m, d, width)).copy(), symmetric)
    left = np.arange(m)  # matrices whose eigenvectors are not found yet
    for _ in range(FILTERS):
        turned = symmetric @ basis
        values, turns = xp.linalg.eigh(xp.matrix_transpose(basis) @ turned)
        values, turns = xp.flip(values, axis=1), xp.flip(turns, axis=2)
        basis, turned = basis @ turns, turned @ turns
        apart = turned[:, :, :n] - basis[:, :, :n] * values[:, None, :n]
        residual = xp.max(xp.linalg.vector_norm(apart, axis=1), axis=1)
        length = xp.min(xp.linalg.vector_norm(basis, axis=1), axis=1)
        known = xp.stack([residual, length, values[:, 0], values[:, -1]])
        error, shortest, top, low = to_numpy(known)  # the one copy from a device
        found = (error <= max(16.0, d**0.5 / 2) * eps * top) & (shortest > 0.5)
        if found.any():
            places, mine = index(left[found], values), index(np.flatnonzero(found), values)
            first[places], vectors[places] = values[mine, :n], basis[mine, :, :n]
            rest = index(np.flatnonzero(~found), values)
            symmetric, basis, turned = symmetric[rest], basis[rest], turned[rest]
            left, top, low = left[~found], top[~found], low[~found]
        if not len(left):
            break
        low = np.maximum(low, eps * top)
        degree = int(math.log(GROWTH) / math.acosh(max(2 * float(np.max(top / low)) - 1, 1 + eps)))
        half = place(low / 2, symmetric)[:, None, None]
        before, filtered = basis, turned / half - basis
        for _ in range(min(degree, MOST_DEGREE) - 1):
            before, filtered = filtered, 2 * (symmetric @ filtered / half - filtered) - before
        basis = orthonormal(filtered)
    return first, vectors, np.isin(np.arange(m), left, invert=True)


def orthonormal(stack: Array) -> Array:
    """Orthonormal columns that span those of each matrix, by Cholesky factors of their products.

    Shifted and done three times, as in Fukaya et al. 2020: good for condition numbers up to 1e15.
    """
    xp, d = namespace(stack), stack.shape[1]
    shift = d * float(np.finfo(np.float64).eps)
    for _ in range(3):
        norms = xp.linalg.vector_norm(stack, axis=1)[:, None, :]
        stack = stack / xp.where(norms > 0, norms, xp.ones_like(norms))
        products = xp.matrix_transpose(stack) @ stack
        factor = xp.linalg.cholesky(products + shift * place(np.eye(stack.shape[2]), stack))
        stack = stack @ xp.matrix_transpose(xp.linalg.inv(factor))
    return stack / xp.linalg.vector_norm(stack, axis=1)[:, None, :]


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


def nearest_label(rows: Array, centroids: Array) -> Array:
    """Index of the nearest centroid for every row."""
    origin = centroids.mean(0)
    return nearest_about(shifted(rows, origin), centroids - origin)[0]


def nearest_about(Y: Array, C: Array) -> tuple[Array, Array]:
    """(index of the nearest centroid, squared distance to it) for every row.

    Rows and centroids are given less a point in the middle of the centroids. Where there are many
    centroids, a part of the rows is compared at a time.
    """
    xp, (n, _) = namespace(Y), Y.shape
    height = block_rows(len(C)) * (128 if is_tensor(Y) else 2)
    if n > height:
        labels, distances = zip(*(nearest_about(Y[p], C) for p in slices(n, height)), strict=True)
        return xp.concat(labels), xp.concat(distances)
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

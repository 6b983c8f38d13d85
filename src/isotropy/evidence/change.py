"""How much a space changed: its geometry as a whole, and its nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.threads import over_threads

BLOCK_ELEMENTS = 1 << 23


@public
def linear_cka(X: Any, Y: Any) -> float:
    r"""Linear centred kernel alignment (CKA) of two spaces of the same rows, in [0, 1]; exact.

    ||Y'X||_F^2/(||X'X||_F ||Y'Y||_F) with centred columns. 1 if one space is the other shifted,
    rotated and scaled, near 0 if they have nothing in common.

    Parameters
    ----------
    X, Y : arrays or tensors of shape (n_samples, any number of features)

    Notes
    -----
    Section 3 of [1]. With fewer rows than features it is computed from products of rows,
    <XX', YY'>/(||XX'||_F ||YY'||_F), which is equal. NaN if all rows of a space are equal.

    References
    ----------
    .. [1] Kornblith et al. 2019, Similarity of Neural Network Representations Revisited.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((100, 8))
    >>> round(linear_cka(X, 3 * X[:, ::-1] + 1), 6)
    1.0
    """
    X, Y = _paired(X, Y)
    n, width, other = len(X), X.shape[1], Y.shape[1]
    x, y = _centred(X), _centred(Y)
    if n * (width + other) < width**2 + other**2 + width * other:
        own, others = (rows @ rows.T for rows in (x(0, n), y(0, n)))
        shared = float(np.vdot(own, others))
    else:
        own, others = np.zeros((width, width)), np.zeros((other, other))
        cross = np.zeros((other, width))
        for start, rows, _ in linalg.blocks(X):
            mine, theirs = (part(start, start + len(rows)) for part in (x, y))
            own += mine.T @ mine
            others += theirs.T @ theirs
            cross += theirs.T @ mine
        shared = float(np.vdot(cross, cross))
    size = float(np.linalg.norm(own) * np.linalg.norm(others))
    return min(shared / size, 1.0) if size > 0 else math.nan


@public
def neighbour_overlap(X: Any, Y: Any, k: int = 10, sample: int = 2000, seed: int = 0) -> float:
    r"""Mean share of a row's k nearest neighbours that two spaces have in common, in [0, 1].

    Neighbours are by cosine among all other rows, found in blocks in O(sample n d). Spaces with
    nothing in common share k/(n - 1) by chance.

    Parameters
    ----------
    X, Y : arrays or tensors of shape (n_samples, any number of features)
    k, sample, seed : int
        Number of neighbours, number of rows whose neighbours are compared, and the seed that
        these are drawn with.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((100, 8))
    >>> neighbour_overlap(X, 3 * X[:, ::-1])
    1.0
    """
    X, Y = _paired(X, Y)
    n = len(X)
    k = checks.integer(k, "k", 1, n - 1)
    sample = checks.integer(sample, "sample", 1)
    seed = checks.integer(seed, "seed", 0)
    picked = np.random.default_rng(seed).choice(n, min(n, sample), replace=False)
    units = linalg.unit_rows(X), linalg.unit_rows(Y)
    rows = max(1, BLOCK_ELEMENTS // n)

    def shared(start: int) -> int:
        part = picked[start : start + rows]
        found = []
        for space in units:
            distances = -(space[part] @ space.T)
            distances[np.arange(len(part)), part] = np.inf
            found.append(np.argpartition(distances, k - 1, axis=1)[:, :k])
        mine, theirs = found
        return int((mine[:, :, None] == theirs[:, None, :]).sum())

    return sum(over_threads(shared, range(0, len(picked), rows))) / (k * len(picked))


def _centred(X: NDArray[Any]) -> Callable[[int, int], Floats]:
    """A function that gives some rows, less the mean and divided by the largest value."""
    first = X[0].astype(np.float64)  # the mean of equal rows is then exactly that row
    parts = [(rows - first).sum(axis=0) for _, rows, _ in linalg.blocks(X)]
    origin: Floats = first + np.sum(parts, axis=0) / len(X)
    scale = float(np.abs(X).max()) or 1.0
    return lambda start, stop: (X[start:stop] - origin) / scale


def _paired(X: Any, Y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = (linalg.to_numpy(linalg.native(checks.matrix(Z))) for Z in (X, Y))
    if len(first) != len(second):
        raise InputError(
            f"Y must have as many rows as X, got {len(second)} and {len(first)}. Row i "
            "of both must belong to the same text."
        )
    checks.finite(first)
    checks.finite(second)
    return first, second

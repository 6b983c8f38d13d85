"""Partial states as they are sent: without what both ends have, and with half of what is symmetric.

A symmetric matrix is sent as its lower triangle. Attributes that an empty statistic has too, such
as the directions of `LogPartition`, are not sent at all. Both ends make empty statistics from the
same ones, so nothing is lost: what arrives is what was sent, to the last bit.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.engines.base import Partial, fresh
from isotropy.linalg import Floats
from isotropy.stats import Statistic

PANEL = 64  # rows and columns that are compared at a time, as they stay in the cache


@dataclass(frozen=True)
class Packed:
    """A partial without what an empty one has."""

    states: list[Any]
    n_chunks: int
    n_skipped: int

    def __sizeof__(self) -> int:
        """The bytes of its arrays, by which a scheduler chooses where states are merged."""
        return _n_bytes(self.states)


@dataclass(frozen=True)
class Triangle:
    """A symmetric matrix: the lower half of its rows, with the first rows where they repeat."""

    half: Floats

    @classmethod
    def of(cls, matrix: Floats) -> Triangle:
        n, top = len(matrix), len(matrix) // 2
        half = np.empty((n - top, n + 1 - n % 2))
        half[:, :n] = matrix[top:]
        free = ~np.tri(top, k=-1, dtype=bool)
        np.copyto(half[:top, top + 1 :], matrix[:top, :top].T, where=free)
        return cls(half)

    def matrix(self) -> Floats:
        height, width = self.half.shape
        n = width - 1 if width > 2 * height else width
        top = n - height
        below, corner = self.half[:, :top], self.half[:, top:n]
        first = self.half[:top, top + 1 :]
        matrix = np.empty((n, n))
        matrix[top:, :top], matrix[:top, top:] = below, below.T
        matrix[top:, top:] = np.where(np.tri(height, dtype=bool), corner, corner.T)
        matrix[:top, :top] = np.where(np.tri(top, k=-1, dtype=bool), first.T, first)
        return matrix


def packed(partial: Partial, statistics: Sequence[Statistic]) -> Packed:
    """The partial, which began as these statistics, as it is sent."""
    empty = fresh(statistics).states
    states = [_difference(state, known) for state, known in zip(partial.states, empty, strict=True)]
    return Packed(states, partial.n_chunks, partial.n_skipped)


def unpacked(sent: Packed, statistics: Sequence[Statistic]) -> Partial:
    """The partial as it was before it was sent."""
    partial = fresh(statistics)
    partial.states = [
        _joined(part, known) for part, known in zip(sent.states, partial.states, strict=True)
    ]
    partial.n_chunks, partial.n_skipped = sent.n_chunks, sent.n_skipped
    return partial


class Difference(dict[str, Any]):
    """The attributes of a statistic that an empty one does not have."""


def _difference(value: Any, known: Any) -> Any:
    if isinstance(value, Statistic) and type(value) is type(known):
        mine, theirs = vars(value), vars(known)
        return Difference(
            (name, _difference(part, theirs.get(name)))
            for name, part in mine.items()
            if name not in theirs or not _shared(part, theirs[name])
        )
    if isinstance(value, list):
        return [_difference(*pair) for pair in _paired(value, known)]
    return Triangle.of(value) if symmetric(value) else value


def _shared(one: Any, other: Any) -> bool:
    """Whether both are the same object, or the same memory, as settings of statistics are."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(one.__array_interface__ == other.__array_interface__)
    return one is other


def _joined(part: Any, known: Any) -> Any:
    if isinstance(part, Difference):
        for name, value in part.items():
            setattr(known, name, _joined(value, getattr(known, name, None)))
        return known
    if isinstance(part, list):
        return [_joined(*pair) for pair in _paired(part, known)]
    return part.matrix() if isinstance(part, Triangle) else part


def _paired(values: list[Any], known: Any) -> Iterable[tuple[Any, Any]]:
    same = isinstance(known, list) and len(known) == len(values)
    return zip(values, known if same else itertools.repeat(None), strict=False)


def _n_bytes(part: Any) -> int:
    if isinstance(part, (list, tuple, dict)):
        return sum(map(_n_bytes, part.values() if isinstance(part, dict) else part))
    array = part.half if isinstance(part, Triangle) else part
    return int(array.nbytes) if isinstance(array, np.ndarray) else sys.getsizeof(array)


def symmetric(value: Any) -> bool:
    """Whether this is a matrix of float64 that equals its transpose to the last bit."""
    if not (isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.float64):
        return False
    if value.shape[0] != value.shape[1] or not value.flags.c_contiguous:
        return False
    bits: NDArray[np.int64] = value.view(np.int64)
    return all(
        np.array_equal(bits[i : i + PANEL, : i + PANEL], bits[: i + PANEL, i : i + PANEL].T)
        for i in range(0, len(bits), PANEL)
    )

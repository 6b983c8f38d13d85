"""Means and covariances of consecutive blocks of rows, in a few random directions."""

from __future__ import annotations

import copy
import functools
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import LARGEST_TOTAL, Array, is_tensor
from isotropy.linalg import Floats
from isotropy.stats.base import Statistic
from isotropy.stats.moments import near_mean
from isotropy.stored import Field
from isotropy.threads import over_blocks

N_BLOCKS = 16
N_DIRECTIONS = 64
MOST_ROWS = 1024  # of a block


@functools.lru_cache(maxsize=4)
def directions(n_features: int) -> Floats:
    """Orthonormal columns: all axes if there are few, otherwise random ones."""
    if n_features <= N_DIRECTIONS:
        return np.eye(n_features)
    normal = np.random.default_rng(0).standard_normal((n_features, N_DIRECTIONS))
    return np.linalg.qr(normal).Q


class BlockSums(Statistic):
    """Sums of 1, y and y y' over each sixteenth of the rows, with y = P'(x - origin) / 2^exponent.

    P has 64 random orthonormal columns, and at most 1,024 evenly spaced rows of a block are used:
    the work and the state are bounded, whatever the width and the number of rows.

    Parameters
    ----------
    n_samples : int
        Number of rows, including bad ones.
    """

    needs_rows = True
    numbers_rows = True
    settings = ("n_samples", "origin", "exponent")
    fields = {
        "n_samples": Field(kind="int", low=1),
        "origin": Field("n_features", optional=True),
        "exponent": Field(kind="int", low=-1200, high=1200, optional=True),
        "rows": Field(f"{N_BLOCKS}", low=0, high=LARGEST_TOTAL),
        "weight": Field(f"{N_BLOCKS}", low=0, high=LARGEST_TOTAL),
        "total": Field(f"{N_BLOCKS}, n_directions", optional=True),
        "products": Field(f"{N_BLOCKS}, n_directions, n_directions", optional=True),
    }

    def __init__(
        self, n_samples: int, origin: Array | None = None, exponent: int | None = None
    ) -> None:
        self.n_samples, self.exponent = n_samples, exponent
        self.origin = None if origin is None else np.asarray(origin, dtype=np.float64)
        self.rows: Floats = np.zeros(N_BLOCKS)
        self.weight: Floats = np.zeros(N_BLOCKS)
        self.total: Floats | None = None
        self.products: Floats | None = None

    def settled(self, rows: Array, n_samples: int) -> Self:
        if self.origin is not None:
            return self
        origin = near_mean(rows)
        first = linalg.double(next(linalg.blocks(linalg.native(rows)))[1])
        apart = linalg.largest(first - linalg.place(origin, first))
        return type(self)(self.n_samples, origin, linalg.exponent_of(apart))

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        if self.origin is None:
            settled = self.settled(X, self.n_samples)
            self.origin, self.exponent = settled.origin, settled.exponent
        height = -(-self.n_samples // N_BLOCKS)
        step = -(-height // MOST_ROWS)
        if np.ndim(first_row) == 0:
            kept = np.arange(-first_row % step, X.shape[0], step)
        else:
            kept = np.flatnonzero(first_row % step == 0)
        kept = kept if w is None else kept[w[kept] > 0]
        if not len(kept):
            return
        numbers = first_row + kept if np.ndim(first_row) == 0 else first_row[kept]
        origin, axes = linalg.like(self.origin, X), linalg.like(directions(int(X.shape[1])), X)

        def seen(part: NDArray[np.int64]) -> Floats:
            rows = linalg.gathered(X, linalg.index(part, X))
            with np.errstate(over="ignore", invalid="ignore"):  # then there is no distance
                apart = linalg.scaled(linalg.shifted(rows, origin), self.exponent)
                return np.asarray(linalg.to_numpy(apart @ axes), dtype=np.float64)

        at_once = len(kept) if is_tensor(X) else MOST_ROWS
        parts = [kept[start : start + at_once] for start in range(0, len(kept), at_once)]
        Y = np.concatenate(over_blocks(seen, parts, X))
        with np.errstate(over="ignore", invalid="ignore"):
            self._add(Y, np.ones(len(kept)) if w is None else w[kept], numbers // height)

    def _add(self, Y: Floats, w: Floats, blocks: NDArray[np.int64]) -> None:
        k = Y.shape[1]
        if self.total is None or self.products is None:
            self.total, self.products = np.zeros((N_BLOCKS, k)), np.zeros((N_BLOCKS, k, k))
        for block in np.unique(blocks):
            mine = blocks == block
            weighted = w[mine, None] * Y[mine]
            self.rows[block] += mine.sum()
            self.weight[block] += w[mine].sum()
            self.total[block] += weighted.sum(axis=0)
            self.products[block] += weighted.T @ Y[mine]

    def _merge(self, other: BlockSums) -> None:
        self.rows, self.weight = self.rows + other.rows, self.weight + other.weight
        if self.total is None or self.products is None:
            self.total, self.products = copy.copy(other.total), copy.copy(other.products)
        elif other.total is not None and other.products is not None:
            self.total = self.total + other.total
            self.products = self.products + other.products

"""A uniform sample of rows that does not depend on order or sharding."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.stats.base import Statistic


class Sample(Statistic):
    """The `size` rows whose hashed row numbers are the smallest.

    A row's key depends on `seed` and on its global row number alone, so the sample is the same
    whatever the order, the sharding and the merging. Rows of no weight are left out.

    Parameters
    ----------
    size : int
        Rows to keep; all of them while there are no more.
    seed : int
        Another seed gives another sample.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.arange(20.0).reshape(10, 2)
    >>> whole = Sample(3, seed=1).update(rows)
    >>> parts = Sample(3, seed=1).update(rows[6:], first_row=6).update(rows[:6])
    >>> np.array_equal(whole.rows, parts.rows)
    True
    """

    numbers_rows = True
    fields = ("size", "seed", "n_rows", "keys", "numbers", "weights", "rows")

    def __init__(self, size: int = 5000, seed: int = 0) -> None:
        self.size = checks.integer(size, "size", "Sample", 1)
        self.seed = checks.integer(seed, "seed", "Sample", 0)
        self.n_rows = 0
        self.keys: NDArray[np.uint64] | None = None
        self.numbers: NDArray[np.int64] | None = None
        self.weights: Floats | None = None
        self.rows: NDArray[Any] | None = None

    def empty(self) -> Self:
        return type(self)(self.size, self.seed)

    @property
    def n_features(self) -> int | None:
        return None if self.rows is None else int(self.rows.shape[1])

    @property
    def complete(self) -> bool:
        """Whether the sample holds every row seen."""
        return self.n_rows <= self.size

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: int) -> None:
        numbers = np.arange(first_row, first_row + X.shape[0], dtype=np.int64)
        keys = hashed(numbers, self.seed)
        kept = np.arange(X.shape[0]) if w is None else np.flatnonzero(w)
        self.n_rows += len(kept)
        if self.keys is not None and len(self.keys) == self.size:
            kept = kept[keys[kept] <= self.keys[-1]]  # most rows of a long stream end here
        if len(kept) > self.size:
            kept = kept[np.argpartition(keys[kept], self.size - 1)[: self.size]]
        weights = np.ones(len(kept)) if w is None else w[kept]
        rows = linalg.to_numpy(X[linalg.index(kept, X)])
        self._take(keys[kept], numbers[kept], weights, rows)

    def _merge(self, other: Sample) -> None:
        self.n_rows += other.n_rows
        self._take(other.keys, other.numbers, other.weights, other.rows)

    def _take(self, keys: Any, numbers: Any, weights: Any, rows: Any) -> None:
        if self.keys is not None:
            keys = np.concatenate([self.keys, keys])
            numbers = np.concatenate([self.numbers, numbers])
            weights = np.concatenate([self.weights, weights])
            rows = np.concatenate([self.rows, rows])
        order = np.lexsort((numbers, keys))[: self.size]
        numbers = numbers[order]
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(twice):
            raise InputError(
                f"Sample: each row must come once, got row {numbers[twice[0]]} twice. "
                "Pass the number of its first row with every part, as first_row."
            )
        self.keys, self.numbers = keys[order], numbers
        self.weights, self.rows = weights[order], rows[order]

    def _expect_same_settings(self, other: Self) -> None:
        if (self.size, self.seed) != (other.size, other.seed):
            raise InputError(
                f"Sample: other must have size {self.size} and seed {self.seed}, got "
                f"{other.size} and {other.seed}."
            )


def hashed(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """splitmix64 of the row numbers, started at a place that the seed decides."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    z = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return result

"""A uniform sample of rows that does not depend on order or sharding."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, public
from isotropy.stats.base import Statistic
from isotropy.stored import Field


@public
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
    settings = ("size", "seed")
    fields = {
        "size": Field(kind="int", low=1),
        "seed": Field(kind="seed", low=0),
        "n_rows": Field(kind="int", low=0),
        "keys": Field("n_kept", kind="int", optional=True, ascending=True),
        "numbers": Field("n_kept", kind="int", optional=True, low=0),
        "weights": Field("n_kept", optional=True, low=0, above=True, high=checks.LARGEST_WEIGHT),
        "rows": Field("n_kept, n_features", kind="rows", optional=True),
    }

    def __init__(self, size: int = 5000, seed: int = 0) -> None:
        self.size = checks.integer(size, "size", 1)
        self.seed = checks.integer(seed, "seed", 0)
        self.n_rows = 0
        self.keys: Array | None = None
        self.numbers: Array | None = None
        self.weights: Array | None = None
        self.rows: Array | None = None

    @property
    def complete(self) -> bool:
        """Whether the sample holds every row seen."""
        return self.n_rows <= self.size

    def first(self, size: int) -> Sample:
        """The sample of that size, which a sample of this size holds."""
        found = Sample(min(size, self.size), self.seed)
        found.n_rows = self.n_rows
        for name in ("keys", "numbers", "weights", "rows"):
            part = getattr(self, name)
            setattr(found, name, None if part is None else part[: found.size].copy())
        return found

    def _check_state(self) -> None:
        seen = self._expect_together("keys", "numbers", "weights", "rows")
        n_kept = len(self.keys) if seen else 0  # type: ignore[arg-type]
        if n_kept != min(self.n_rows, self.size):
            raise InputError(
                f"{n_kept} rows must be all that were seen or size, got n_rows {self.n_rows} and "
                f"size {self.size}"
            )
        if seen and not np.array_equal(
            hashed(np.asarray(self.numbers), self.seed), np.asarray(self.keys)
        ):
            raise InputError("keys must be those of the numbers, got others")

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        rows = linalg.namespace(X).arange(X.shape[0], device=array_api_compat.device(X))
        counted = isinstance(first_row, int | np.integer)
        numbers = rows + int(first_row) if counted else linalg.index(first_row, X)
        keys = hashed(numbers, self.seed)
        if w is not None and not w.all():
            rows, keys = (part[linalg.index(np.flatnonzero(w), X)] for part in (rows, keys))
        self.n_rows += int(keys.shape[0])
        if self.keys is not None and len(self.keys) == self.size:
            near = keys <= int(self.keys[-1])  # most rows of a long stream end here
            rows, keys = rows[near], keys[near]
        if keys.shape[0] > self.size:
            best = linalg.smallest(keys, self.size)
            rows, keys = rows[best], keys[best]
        weights = linalg.zeros(rows.shape[0], X) + 1 if w is None else linalg.place(w, X)[rows]
        self._take(keys, numbers[rows], weights, X[rows])

    def _merge(self, other: Sample) -> None:
        self.n_rows += other.n_rows
        theirs = other.state()
        self.to_host()
        self._take(*(theirs[name] for name in ("keys", "numbers", "weights", "rows")))

    def _take(self, keys: Array, numbers: Array, weights: Array, rows: Array) -> None:
        parts = {"keys": keys, "numbers": numbers, "weights": weights, "rows": rows}
        xp = linalg.namespace(keys)
        if self.keys is not None:
            best = xp.argsort(xp.concat([linalg.index(self.keys, keys), keys]))[: self.size]
            old, new = best[best < len(self.keys)], best[best >= len(self.keys)] - len(self.keys)
            for name, part in parts.items():  # picked before they are joined: rows are wide
                mine = xp.asarray(getattr(self, name), device=array_api_compat.device(keys))
                parts[name] = xp.concat([mine[old], xp.astype(part[new], mine.dtype, copy=False)])
        order = xp.argsort(parts["keys"])[: self.size]
        parts = {name: part[order] for name, part in parts.items()}
        twice = parts["numbers"][1:] == parts["numbers"][:-1]  # equal numbers have equal keys
        if bool(twice.any()):
            raise InputError(
                f"each row must come once, got row {int(parts['numbers'][1:][twice][0])} "
                "twice. Pass the number of its first row with every part, as first_row."
            )
        for name, part in parts.items():
            setattr(self, name, part)


def hashed(numbers: Array, seed: int) -> Array:
    """splitmix64 of the row numbers, in wrapping int64, started where the seed decides."""
    start = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    z = numbers * _signed(0x9E3779B97F4A7C15) + _signed(start)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(z: Array, n: int) -> Array:
    """z >> n with zeros moving in, which int64 does not do by itself."""
    return (z >> n) & ((1 << (64 - n)) - 1)

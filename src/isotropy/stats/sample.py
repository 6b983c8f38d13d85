"""A uniform sample of rows that does not depend on order or sharding."""

from __future__ import annotations

import copy
from typing import Any, Self

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, public
from isotropy.stats.base import Statistic
from isotropy.stored import Field

NO_LIMIT = 2**63 - 1
MOST_PIECES = 64  # of rows that are kept as they came
SPARE = 10  # standard deviations by which the rows below a limit are more than enough


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
    limit : int, optional
        Rows with larger keys are left out at once. A pass over many rows sets it so that a few
        more than `size` rows are left.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.arange(20.0).reshape(10, 2)
    >>> whole = Sample(3, seed=1).update(rows)
    >>> parts = Sample(3, seed=1).update(rows[6:], first_row=6).update(rows[:6])
    >>> np.array_equal(whole.rows, parts.rows)
    True
    """

    needs_rows = True
    numbers_rows = True
    settings = ("size", "seed", "limit")
    fields = {
        "size": Field(kind="int", low=1),
        "seed": Field(kind="seed", low=0),
        "limit": Field(kind="int", optional=True),
        "n_rows": Field(kind="int", low=0),
        "keys": Field("n_kept", kind="int", optional=True, ascending=True),
        "numbers": Field("n_kept", kind="int", optional=True, low=0),
        "weights": Field("n_kept", optional=True, low=0, above=True, high=checks.LARGEST_WEIGHT),
        "rows": Field("n_kept, n_features", kind="rows", optional=True),
    }

    def __init__(self, size: int = 5000, seed: int = 0, limit: int | None = None) -> None:
        self.size = checks.integer(size, "size", 1)
        self.seed = checks.integer(seed, "seed", 0)
        self.limit = limit
        self.n_rows = 0
        self.keys: Array | None = None
        self.numbers: Array | None = None
        self.weights: Array | None = None
        self.rows = None

    @property
    def rows(self) -> Array | None:
        """The rows, in the order of their keys."""
        if self._order is not None:
            self.rows = self._gathered()
        return self._pieces[0] if self._pieces else None

    @rows.setter
    def rows(self, rows: Array | None) -> None:
        """Rows are wide: pieces are kept as they come, with their places in the right order."""
        self._pieces: tuple[Array, ...] = () if rows is None else (rows,)
        self._order: Array | None = None

    def _gathered(self) -> Array:
        order = self._order
        assert order is not None
        xp = linalg.namespace(order)
        widest = max(self._pieces, key=lambda piece: int(xp.finfo(piece.dtype).bits))
        found, start = linalg.empty((order.shape[0], widest.shape[1]), widest), 0
        for piece in self._pieces:
            stop = start + piece.shape[0]
            here = (order >= start) & (order < stop)
            found[here] = xp.astype(piece[order[here] - start], widest.dtype)
            start = stop
        return found

    @property
    def n_features(self) -> int | None:
        return int(self._pieces[0].shape[1]) if self._pieces else None

    @property
    def complete(self) -> bool:
        """Whether the sample holds every row seen."""
        return self.n_rows <= self.size

    def settled(self, rows: Array, n_samples: int) -> Self:
        share = (self.size + SPARE * self.size**0.5) / n_samples
        if self.limit is not None or share >= 1:
            return self
        return type(self)(self.size, self.seed, int(share * 2.0**64) - 2**63)

    @property
    def once_more(self) -> Self | None:
        n_kept = 0 if self.keys is None else len(self.keys)
        lacks = n_kept < min(self.size, self.n_rows)  # many rows were bad, or had no weight
        return type(self)(self.size, self.seed, NO_LIMIT) if lacks else None

    def first(self, size: int) -> Sample:
        """The sample of that size, which a sample of this size holds."""
        found = Sample(min(size, self.size), self.seed, self.limit)
        found.n_rows = self.n_rows
        for name in ("keys", "numbers", "weights", "rows"):
            part = getattr(self, name)
            setattr(found, name, None if part is None else part[: found.size].copy())
        return found

    def _check_state(self) -> None:
        seen = self._expect_together("keys", "numbers", "weights", "rows")
        n_kept = len(self.keys) if seen else 0  # type: ignore[arg-type]
        most = min(self.n_rows, self.size)
        if n_kept > most or (n_kept < most and self.limit is None):
            raise InputError(
                f"{n_kept} rows must be all that were seen or size, got n_rows {self.n_rows} and "
                f"size {self.size}"
            )
        if n_kept and self.limit is not None and int(np.asarray(self.keys)[-1]) > self.limit:
            raise InputError(f"keys must be at most limit {self.limit}, got a larger one")
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
        limit = self.limit
        if self.keys is not None and len(self.keys) == self.size:
            limit = int(self.keys[-1])
        if limit is not None:
            near = keys <= limit  # most rows of a long stream end here
            rows, keys = rows[near], keys[near]
        if keys.shape[0] > self.size:
            best = linalg.smallest(keys, self.size)
            rows, keys = rows[best], keys[best]
        if self.keys is not None and not keys.shape[0]:
            return
        weights = linalg.zeros(rows.shape[0], X) + 1 if w is None else linalg.place(w, X)[rows]
        self._take(keys, numbers[rows], weights, (X[rows],), linalg.count(len(rows), X))

    def _merge(self, other: Sample) -> None:
        self.n_rows += other.n_rows
        if checks.is_tensor(self.keys):
            self.to_host()
        theirs = copy.copy(other).to_host() if checks.is_tensor(other.keys) else other
        self._take(theirs.keys, theirs.numbers, theirs.weights, theirs._pieces, theirs._places())

    def _places(self) -> Array:
        """Where each row is in the pieces together."""
        assert self.keys is not None
        return linalg.count(len(self.keys), self.keys) if self._order is None else self._order

    def _take(
        self, keys: Array, numbers: Array, weights: Array, pieces: tuple[Array, ...], order: Array
    ) -> None:
        parts = {"keys": keys, "numbers": numbers, "weights": weights, "_order": order}
        xp = linalg.namespace(keys)
        if self.keys is not None:
            device, n_held = array_api_compat.device(keys), sum(map(len, self._pieces))
            mine = {"_order": self._places()}
            for name, part in parts.items():
                own = xp.asarray(mine.get(name, getattr(self, name)), device=device)
                parts[name] = xp.concat([own, part + n_held if name == "_order" else part])
            pieces = (*(xp.asarray(piece, device=device) for piece in self._pieces), *pieces)
        order = xp.argsort(parts["keys"])[: self.size]
        parts = {name: part[order] for name, part in parts.items()}
        twice = parts["numbers"][1:] == parts["numbers"][:-1]  # equal numbers have equal keys
        if bool(twice.any()):
            raise InputError(
                f"each row must come once, got row {int(parts['numbers'][1:][twice][0])} "
                "twice. Pass the number of its first row with every part, as first_row."
            )
        self._pieces = pieces
        for name, part in parts.items():
            setattr(self, name, part)
        if len(pieces) > MOST_PIECES or sum(map(len, pieces)) > 2 * self.size:
            self.rows = self._gathered()


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

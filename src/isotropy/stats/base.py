"""What every statistic promises: update, merge, an empty state, and plain arrays inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg, stored
from isotropy.checks import Array
from isotropy.errors import InputError, public
from isotropy.stored import Field

USUAL_WEIGHTS = 30  # rows are summed with weights between 2^-30 and 2^30 as they are


@public
class Statistic(ABC):
    """A small state of sums over rows.

    An empty state is the identity of `merge`, merging is associative, and any sharding of the
    rows equals one pass. A subclass declares `fields` and whatever else applies to it of the
    attributes below, and defines `_update`.
    """

    fields: ClassVar[dict[str, Field]]
    """Attributes that make up the state, and what each must be when it is read again; one that is
    None is left out of it."""

    settings: ClassVar[tuple[str, ...]] = ()
    """Attributes that the constructor takes, in its order; those of merged statistics are equal."""

    weighted: ClassVar[tuple[str, ...]] = ()
    """Attributes that are sums of weights times something."""

    needs_rows: ClassVar[bool] = False
    """Whether the first rows, or their number, settle something that all parts must share."""

    threaded: ClassVar[bool] = False
    """Whether `update` spreads its work over threads itself, because a state for each thread would
    be too large."""

    numbers_rows: ClassVar[bool] = False
    """Whether rows of no weight must be passed on, because their numbers count."""

    def update(
        self, X: Array, sample_weight: object = None, first_row: int | NDArray[np.int64] = 0
    ) -> Self:
        """Add the rows of X, whose first one is row `first_row` of the whole data.

        Where rows in between were left out, `first_row` is the array of all their numbers.
        """
        X = linalg.native(checks.matrix(X))
        w = checks.weights(sample_weight, X.shape[0])
        self._expect_features(X.shape[1])
        if w is not None and not self.numbers_rows and not w.all():
            kept = np.flatnonzero(w)  # a row of no weight is a row that is not there
            X, w = X[linalg.index(kept, X)], w[kept]
        if not X.shape[0]:
            return self
        size = 0 if w is None else linalg.exponent_of(float(w.max(initial=0.0)))
        if abs(size) <= USUAL_WEIGHTS or not self.weighted:
            self._update(X, w, first_row)
        else:  # float32 holds no such weights: those over a power of two are summed apart
            part = self.empty()
            part._update(X, linalg.scaled(w, size), first_row)
            part._multiply(2.0**size)
            self.merge(part)
        return self

    def _multiply(self, factor: float) -> None:
        """Make it what it would be with all weights times a power of two."""
        for name in self.weighted:
            setattr(self, name, getattr(self, name) * factor)

    def merge(self, other: Self) -> Self:
        """Add the rows that `other` has seen; `other` is left as it was.

        No array is changed in place, so a shallow copy can be merged into.
        """
        if type(other) is not type(self):
            raise InputError(f"other must be of the same kind, got {type(other).__name__}.")
        self._expect_same_settings(other)
        if other.n_features is not None:
            self._expect_features(other.n_features)
            self._merge(other)
        return self

    def settled(self, rows: Array, n_samples: int) -> Self:
        """The empty statistic with what the first of `n_samples` rows settle, for all parts."""
        return self

    @property
    def once_more(self) -> Self | None:
        """The empty statistic of another pass over the rows, if this one did not get enough."""
        return None

    def empty(self) -> Self:
        """A new statistic with the same settings that has seen no rows."""
        return type(self)(*(getattr(self, name) for name in self.settings))

    @property
    def n_features(self) -> int | None:
        """Width of the rows; None before the first, unless the settings tell it."""
        for name, field in self.fields.items():
            value = getattr(self, name)
            if value is not None and "n_features" in field.axes:
                return int(value.shape[field.axes.index("n_features")])
        return None

    def to_host(self) -> Self:
        """The same statistic, its sums brought from the device to numpy arrays."""
        for name in self.fields:
            value = getattr(self, name)
            if checks.is_tensor(value):
                host = linalg.to_numpy(value)
                setattr(self, name, host if host.ndim else host.item())
        return self

    def state(self) -> dict[str, NDArray[Any]]:
        """The state as numpy arrays by name."""
        values = {name: getattr(self, name) for name in self.fields}
        return {k: np.array(linalg.to_numpy(v)) for k, v in values.items() if v is not None}

    @classmethod
    def from_state(cls, state: dict[str, NDArray[Any]]) -> Self:
        """The statistic whose `state()` this is; raises an InputError if it is no such state."""
        stored.check(state, cls.fields)
        self = cls.__new__(cls)
        for name in cls.fields:
            value = state.get(name)
            if value is not None:
                value = np.array(value) if value.ndim else value.item()
            setattr(self, name, value)
        self._check_state()
        return self

    def _check_state(self) -> None:  # noqa: B027
        """Raise where parts of a state that was read do not agree."""

    def _expect_together(self, *names: str) -> bool:
        """Whether there are these parts of a state, which are there together or not at all."""
        there = [name for name in names if getattr(self, name) is not None]
        if there and len(there) < len(names):
            raise InputError(f"there must be {', '.join(names)} together, got {', '.join(there)}")
        return bool(there)

    @abstractmethod
    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        """Add rows that are checked and have weights above zero."""

    def _merge(self, other: Self) -> None:
        """Add the rows of a statistic that fits and has seen some."""
        for name in self.weighted:
            total = linalg.to_numpy(getattr(self, name)) + linalg.to_numpy(getattr(other, name))
            setattr(self, name, total if total.ndim else float(total))

    def _expect_same_settings(self, other: Self) -> None:
        for name in self.settings:
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                raise InputError(f"other must have the same {name}.")

    def _expect_features(self, n_features: int) -> None:
        if self.n_features is not None and n_features != self.n_features:
            raise InputError(
                f"rows must have {self.n_features} features like those "
                f"already seen, got {n_features}."
            )

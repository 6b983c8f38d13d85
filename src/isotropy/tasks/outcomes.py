"""Outcomes: scores whose differences can be tested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.engines import over_threads
from isotropy.errors import InputError, public
from isotropy.linalg import Floats

BLOCK_ELEMENTS = 1 << 18  # a block of draws and its temporaries stay in the cache

Integers = NDArray[np.int64]


@public
class Outcome(ABC):
    """A score that can be computed again on resampled items, or after exchanging items.

    A subclass defines `_resampled(weights)` and `_exchange(other)` for blocks of draws of shape
    (n_items, n_draws). `fixed` lists the attributes that two outcomes must share to be compared.
    """

    fixed: ClassVar[tuple[str, ...]] = ()
    metrics: dict[str, float]
    """Other figures of the same items, by name."""

    def __init__(self, n_items: int, metrics: Mapping[str, float] | None = None) -> None:
        self.n_items = n_items
        self.metrics = dict(metrics or {})

    @cached_property
    def value(self) -> float:
        """The score as a fraction; NaN if it is undefined."""
        return float(self.resampled(np.ones((1, self.n_items)))[0])

    def resampled(self, weights: NDArray[Any]) -> Floats:
        """The score of each draw, in which item i counts weights[draw, i] times.

        Parameters
        ----------
        weights : array of shape (n_draws, n_items)
            Integers of at least zero.

        Returns
        -------
        array of shape (n_draws,)
            NaN if the score of a draw is undefined.
        """
        weights = self._expect_draws(weights, "weights")
        if weights.size and weights.min() < 0:
            raise InputError(f"weights must not be negative, got {weights.min():g}.")
        return self._in_blocks(self._resampled, weights)

    def exchanged(self, other: Self, swaps: NDArray[Any]) -> Floats:
        """The difference in score, self less other, after each draw exchanged some items.

        Parameters
        ----------
        other : Outcome
            An outcome of the same kind on the same items.
        swaps : boolean array of shape (n_draws, n_items)
            Whether the two systems exchange their results on an item.

        Returns
        -------
        array of shape (n_draws,)
        """
        self._expect_comparable(other)
        swaps = self._expect_draws(swaps, "swaps")
        return self._in_blocks(self._exchange(other), swaps != 0)

    @abstractmethod
    def _resampled(self, weights: Floats) -> Floats:
        """Scores of a block of weights."""

    @abstractmethod
    def _exchange(self, other: Self) -> Callable[[Floats], Floats]:
        """A function that computes the differences for a block of swaps, which are 1 or 0."""

    def _in_blocks(self, function: Callable[[Floats], Floats], draws: NDArray[Any]) -> Floats:
        rows = max(1, BLOCK_ELEMENTS // self.n_items)

        def work(start: int) -> Floats:
            block = np.ascontiguousarray(draws[start : start + rows].T, dtype=np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                return function(block)

        found = over_threads(work, range(0, len(draws), rows))
        return np.concatenate(found) if found else np.empty(0)

    def _expect_draws(self, draws: NDArray[Any], name: str) -> NDArray[Any]:
        draws = np.asarray(draws)
        if draws.ndim != 2 or draws.shape[1] != self.n_items:
            raise InputError(
                f"{name} must have the shape (draws, {self.n_items}), got {draws.shape}."
            )
        return draws

    def _expect_comparable(self, other: Outcome) -> None:
        if type(other) is not type(self) or other.n_items != self.n_items:
            raise InputError(
                f"other must be a {type(self).__name__} on {self.n_items} items, got "
                f"{type(other).__name__} on {getattr(other, 'n_items', 'no')}."
            )
        for name in self.fixed:
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                raise InputError(
                    f"other must have the same {name}. Score both systems on the "
                    "same items, in the same order."
                )


def indicator(codes: Integers, n_codes: int | None = None) -> Any:
    """Sparse matrix whose product with an array sums the rows of each code."""
    n = len(codes)
    shape = (int(codes.max()) + 1 if n_codes is None else n_codes, n)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=shape)


def numbers(values: Any, name: str, n_items: int | None = None) -> Floats:
    """values as finite float64 of shape (n_items,)."""
    given = linalg.to_numpy(checks.real_numbers(values, name))
    _expect_items(given, name, n_items)
    array = given.astype(np.float64)
    if not np.isfinite(array).all():
        bad = np.flatnonzero(~np.isfinite(array))
        raise InputError(
            f"{name} must be finite, got {array[bad[0]]} for {len(bad)} "
            f"{'item' if len(bad) == 1 else 'items'} (first: {bad[0]})."
        )
    return array


def labels(values: Any, name: str, n_items: int | None = None) -> NDArray[Any]:
    """values as an array of labels of shape (n_items,)."""
    array = np.asarray(values)
    _expect_items(array, name, n_items)
    return array


def coded(values: Any, name: str, n_items: int | None) -> Integers:
    """The position of each item's label among the sorted labels."""
    _, codes = np.unique(labels(values, name, n_items), return_inverse=True)
    return codes.astype(np.int64)


def _expect_items(array: NDArray[Any], name: str, n_items: int | None) -> None:
    if array.ndim != 1 or not len(array):
        raise InputError(
            f"{name} must have the shape (n_items,) with at least one item, got {array.shape}."
        )
    if n_items is not None and len(array) != n_items:
        raise InputError(
            f"{name} must have one entry for each of the {n_items} items, got {len(array)}."
        )


@public
class Mean(Outcome):
    """The mean of one number per item, such as 1 for a right answer, or the nDCG of a query.

    These numbers are what is exchanged.

    Examples
    --------
    >>> Mean([1, 0, 1, 1]).value
    0.75
    """

    def __init__(self, per_item: Any, metrics: Mapping[str, float] | None = None) -> None:
        self.per_item = numbers(per_item, "per_item")
        super().__init__(len(self.per_item), metrics)

    def _resampled(self, weights: Floats) -> Floats:
        means: Floats = (self.per_item @ weights) / weights.sum(axis=0)
        return means

    def _exchange(self, other: Mean) -> Callable[[Floats], Floats]:
        gap = self.per_item - other.per_item
        return lambda swaps: (gap.sum() - 2 * (gap @ swaps)) / self.n_items

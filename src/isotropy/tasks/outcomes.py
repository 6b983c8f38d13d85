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
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.threads import over_threads

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
        """The score of each draw, in which item i counts weights[draw, i] times; NaN if undefined.

        Parameters
        ----------
        weights : array of shape (n_draws, n_items)
            Integers of at least zero.
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
        """
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


def indicator(codes: Integers, n_codes: int | None = None) -> Any:
    """Sparse matrix whose product with an array sums the rows of each code."""
    n = len(codes)
    shape = (int(codes.max()) + 1 if n_codes is None else n_codes, n)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=shape)


def numbers(values: Any, name: str, n_items: int | None = None) -> Floats:
    """values as finite float64 of shape (n_items,)."""
    given = linalg.to_numpy(checks.real_numbers(values, name))
    array = labels(given, name, n_items).astype(np.float64)
    if not np.isfinite(array).all():
        bad = np.flatnonzero(~np.isfinite(array))
        raise InputError(
            f"{name} must be finite, got {array[bad[0]]} for {len(bad)} "
            f"{'item' if len(bad) == 1 else 'items'} (first: {bad[0]})."
        )
    return array


def labels(values: Any, name: str, n_items: int | None = None) -> NDArray[Any]:
    """values as an array of shape (n_items,)."""
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise InputError(
            f"{name} must have the shape (n_items,) with at least one item, got {array.shape}."
        )
    if n_items is not None and len(array) != n_items:
        raise InputError(
            f"{name} must have one entry for each of the {n_items} items, got {len(array)}."
        )
    return array


def coded(values: Any, name: str, n_items: int | None) -> Integers:
    """The position of each item's label among the sorted labels."""
    _, codes = np.unique(labels(values, name, n_items), return_inverse=True)
    return codes.astype(np.int64)


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


@public
class Correlation(Outcome):
    """The correlation of predicted with gold scores.

    Spearman's is Pearson's of midranks. Two systems exchange what doesn't depend on their scale,
    within each stratum: ranks of the predictions for Spearman, z-scores for Pearson. Gold scores
    stay, and mixed ranks are not ranked again.

    Parameters
    ----------
    predicted, gold : arrays of shape (n_items,)
    kind : {"spearman", "pearson"}
    strata : array of shape (n_items,), optional
        The stratum of each item, such as the source of its sentences.
    combine : {"all", "mean", "wmean"}
        One correlation over all items, or the mean over strata, plain or weighted by their size.
        A draw's mean leaves out the strata without an item in it, and every mean leaves out the
        strata whose gold scores are all equal.
    metrics : mapping, optional

    Notes
    -----
    NaN if the predictions (of a stratum) or all gold scores are constant.

    Examples
    --------
    >>> Correlation([0.1, 0.4, 0.2, 0.9], [1, 2, 3, 4]).value
    0.8
    """

    fixed = ("gold", "kind", "strata", "combine")

    def __init__(
        self,
        predicted: Any,
        gold: Any,
        kind: str = "spearman",
        strata: Any = None,
        combine: str = "all",
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.predicted = numbers(predicted, "predicted")
        n_items = len(self.predicted)
        self.gold = numbers(gold, "gold", n_items)
        self.kind = checks.choice(kind, "kind", ("spearman", "pearson"))
        self.combine = checks.choice(combine, "combine", ("all", "mean", "wmean"))
        self.strata = coded(np.zeros(n_items) if strata is None else strata, "strata", n_items)
        super().__init__(n_items, metrics)

    @cached_property
    def _members(self) -> list[NDArray[np.int64]]:
        """Item numbers of each stratum with a correlation of its own."""
        if self.combine == "all":
            return [np.arange(self.n_items)]
        parts = [np.flatnonzero(self.strata == i) for i in range(int(self.strata.max()) + 1)]
        telling = [part for part in parts if len(np.unique(self.gold[part])) > 1]
        return telling or parts

    @cached_property
    def _variables(self) -> list[tuple[Ranks | Values, Ranks | Values]]:
        kind = Ranks if self.kind == "spearman" else Values
        return [(kind(self.predicted[part]), kind(self.gold[part])) for part in self._members]

    def _resampled(self, weights: Floats) -> Floats:
        found, totals = [], []
        for part, (predicted, gold) in zip(self._members, self._variables, strict=True):
            w = self._rows(weights, part)
            total = w.sum(axis=0)
            x, x_spread = predicted.centred(w, total)
            y, y_spread = gold.centred(w, total)
            found.append(np.einsum("ij,ij,ij->j", w, x, y) / np.sqrt(x_spread * y_spread))
            totals.append(total)
        return self._combined(np.array(found), np.array(totals))

    def _combined(self, correlations: Floats, totals: Floats) -> Floats:
        """Mean over the strata (rows) that have items; totals count them."""
        shares = (totals > 0).astype(np.float64) if self.combine == "mean" else totals
        parts = np.where(totals > 0, shares * correlations, 0.0)
        means: Floats = parts.sum(axis=0) / shares.sum(axis=0)
        return np.clip(means, -1, 1)

    def _exchange(self, other: Correlation) -> Callable[[Floats], Floats]:
        mixtures = [
            (part, mixture(mine.standard, theirs.standard, gold.standard))
            for part, (mine, gold), (theirs, _) in zip(
                self._members, self._variables, other._variables, strict=True
            )
        ]
        totals = np.array([[float(len(part))] for part, _ in mixtures])

        def differences(swaps: Floats) -> Floats:
            found = [mixed(self._rows(swaps, part)) for part, mixed in mixtures]
            ours, theirs = zip(*found, strict=True)
            return self._combined(np.array(ours), totals) - self._combined(np.array(theirs), totals)

        return differences

    def _rows(self, block: Floats, part: Integers) -> Floats:
        return block if len(part) == self.n_items else block.take(part, axis=0)


def mixture(a: Floats, b: Floats, gold: Floats) -> Callable[[Floats], tuple[Floats, Floats]]:
    """A function that computes the correlations of a and b with gold after swaps; all centred.

    With m = (a + b)/2, h = (a - b)/2 and s = -1 for a swapped item, otherwise 1, the mixtures are
    m + s h and m - s h, so three products with the swaps are enough.
    """
    middle, half = (a + b) / 2, (a - b) / 2
    columns = np.stack([half, half * gold, middle * half])
    unswapped = columns.sum(axis=1, keepdims=True)
    own = float(middle @ middle + half @ half)
    with_gold, gold_spread = float(middle @ gold), float(gold @ gold)

    def correlations(swaps: Floats) -> tuple[Floats, Floats]:
        sums, products, mixed = unswapped - 2 * (columns @ swaps)
        found = []
        for side in (1, -1):
            spread = own + 2 * side * mixed - sums**2 / len(a)
            spread = np.where(spread > 1e-12 * own, spread, 0.0)  # less is rounding error
            found.append((with_gold + side * products) / np.sqrt(spread * gold_spread))
        return found[0], found[1]

    return correlations


class Ranks:
    """A variable represented by its midranks."""

    def __init__(self, values: Floats) -> None:
        _, codes = np.unique(values, return_inverse=True)
        self.codes = codes
        self.tied = indicator(codes)
        self.standard = self.centred(np.ones((len(codes), 1)), np.array([len(codes)]))[0][:, 0]

    def centred(self, weights: Floats, total: Floats) -> tuple[Floats, Floats]:
        """Midranks less their mean, and the weighted sum of their squares."""
        counts = self.tied @ weights
        ranks = np.cumsum(counts, axis=0)
        ranks -= counts / 2
        ranks -= total / 2
        spread = np.einsum("ij,ij,ij->j", counts, ranks, ranks)
        return ranks.take(self.codes, axis=0), spread


class Values:
    """A variable represented by its values."""

    def __init__(self, values: Floats) -> None:
        self.values = values - values.mean()
        x, spread = self.centred(np.ones((len(values), 1)), np.array([len(values)]))
        deviation = float(np.sqrt(spread[0] / len(values)))
        self.standard = x[:, 0] / deviation if deviation > 0 else np.zeros(len(values))

    def centred(self, weights: Floats, total: Floats) -> tuple[Floats, Floats]:
        """Values less their mean, and the weighted sum of their squares."""
        x = self.values[:, None] - self.values @ weights / total
        spread = np.einsum("ij,ij,ij->j", weights, x, x)
        rounding = np.finfo(np.float64).eps * total * np.abs(self.values).max()
        spread[spread <= total * rounding**2] = 0.0
        return x, spread

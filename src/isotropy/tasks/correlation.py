"""The correlation of predictions with gold scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import public
from isotropy.linalg import Floats
from isotropy.tasks.outcomes import Integers, Outcome, coded, indicator, numbers


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
        ours, theirs = (
            (with_gold + side * products)
            / np.sqrt(spread_of(own + 2 * side * mixed - sums**2 / len(a), own) * gold_spread)
            for side in (1, -1)
        )
        return ours, theirs

    return correlations


def spread_of(found: Floats, scale: float) -> Floats:
    """A sum of squares computed as a difference, 0 if that is rounding error."""
    return np.where(found > 1e-12 * scale, found, 0.0)


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

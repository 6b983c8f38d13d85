"""What one system got on the items of a task: a score, and what each item brings to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from isotropy import checks
from isotropy.engines import over_threads
from isotropy.errors import InputError
from isotropy.linalg import Floats

BLOCK_ELEMENTS = 1 << 18  # a block of draws and its temporaries stay in the cache

Integers = NDArray[np.int64]


class Outcome(ABC):
    """A score that can be computed again with items counted several times, or exchanged.

    A subclass defines `_resampled(weights)` and `_exchange(other)` for blocks of draws of shape
    (n_items, n_draws), and names in `fixed` what two outcomes must share to be compared.
    """

    fixed: ClassVar[tuple[str, ...]] = ()
    metrics: dict[str, float]
    """Other figures of the same items, by name."""

    def __init__(self, n_items: int, metrics: Mapping[str, float] | None = None) -> None:
        self.n_items = n_items
        self.metrics = dict(metrics or {})

    @cached_property
    def value(self) -> float:
        """The score as a fraction; NaN where it is undefined."""
        return float(self.resampled(np.ones((1, self.n_items)))[0])

    def resampled(self, weights: NDArray[Any]) -> Floats:
        """The score of every draw, in which item i is counted weights[draw, i] times.

        Parameters
        ----------
        weights : array of shape (n_draws, n_items)
            Whole numbers of at least zero.

        Returns
        -------
        array of shape (n_draws,)
            NaN where the score of a draw is undefined.
        """
        weights = self._expect_draws(weights, "weights")
        if weights.size and weights.min() < 0:
            raise InputError(
                f"{self._caller}: weights must not be negative, got {weights.min():g}."
            )
        return self._in_blocks(self._resampled, weights)

    def exchanged(self, other: Self, swaps: NDArray[Any]) -> Floats:
        """self's score less other's after each draw exchanged what is comparable of some items.

        Parameters
        ----------
        other : Outcome
            Of the same kind and on the same items.
        swaps : boolean array of shape (n_draws, n_items)
            Whether the two systems exchange an item.

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
        """What gives the differences of a block of swaps, which are 1 or 0."""

    def _in_blocks(self, function: Callable[[Floats], Floats], draws: NDArray[Any]) -> Floats:
        rows = max(1, BLOCK_ELEMENTS // self.n_items)

        def work(start: int) -> Floats:
            block = np.ascontiguousarray(draws[start : start + rows].T, dtype=np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                return function(block)

        found = over_threads(work, range(0, len(draws), rows))
        return np.concatenate(found) if found else np.empty(0)

    @property
    def _caller(self) -> str:
        return type(self).__name__

    def _expect_draws(self, draws: NDArray[Any], name: str) -> NDArray[Any]:
        draws = np.asarray(draws)
        if draws.ndim != 2 or draws.shape[1] != self.n_items:
            raise InputError(
                f"{self._caller}: {name} must have the shape (draws, {self.n_items}), got "
                f"{draws.shape}."
            )
        return draws

    def _expect_comparable(self, other: Outcome) -> None:
        if type(other) is not type(self) or other.n_items != self.n_items:
            raise InputError(
                f"{self._caller}: other must be a {self._caller} on {self.n_items} items, got "
                f"{type(other).__name__} on {getattr(other, 'n_items', 'no')}."
            )
        for name in self.fixed:
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                raise InputError(
                    f"{self._caller}: other must have the same {name}. Score both systems on the "
                    "same items, in the same order."
                )


class Mean(Outcome):
    """The mean of one number per item, such as 0/1 for a right answer, or the nDCG of a query.

    Exchanged are the numbers.

    Examples
    --------
    >>> Mean([1, 0, 1, 1]).value
    0.75
    """

    def __init__(self, per_item: Any, metrics: Mapping[str, float] | None = None) -> None:
        self.per_item = numbers(per_item, "per_item", "Mean")
        super().__init__(len(self.per_item), metrics)

    def _resampled(self, weights: Floats) -> Floats:
        means: Floats = (self.per_item @ weights) / weights.sum(axis=0)
        return means

    def _exchange(self, other: Mean) -> Callable[[Floats], Floats]:
        gap = self.per_item - other.per_item
        return lambda swaps: (gap.sum() - 2 * (gap @ swaps)) / self.n_items


class Correlation(Outcome):
    """The correlation of predicted with gold scores.

    Spearman's is Pearson's of midranks. Exchanged is what is free of a system's scale: the ranks
    of its predictions for Spearman, their z-scores for Pearson, within each stratum; gold stays,
    and mixed ranks are not ranked again.

    Parameters
    ----------
    predicted, gold : arrays of shape (n_items,)
    kind : {"spearman", "pearson"}
    strata : array of shape (n_items,), optional
        The part that an item belongs to, such as the source of its sentences.
    combine : {"all", "mean", "wmean"}
        One correlation over all items, or the mean over strata, plain or weighted by their items.
        A stratum of which a draw has no item is left out of that draw's mean, and one whose gold
        scores are all equal of every mean.
    metrics : mapping, optional

    Notes
    -----
    NaN where the predictions (of a stratum) or all gold scores are constant.

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
        self.predicted = numbers(predicted, "predicted", "Correlation")
        n_items = len(self.predicted)
        self.gold = numbers(gold, "gold", "Correlation", n_items)
        self.kind = checks.choice(kind, "kind", "Correlation", ("spearman", "pearson"))
        self.combine = checks.choice(combine, "combine", "Correlation", ("all", "mean", "wmean"))
        self.strata = coded(np.zeros(n_items) if strata is None else strata, "strata", n_items)
        super().__init__(n_items, metrics)

    @cached_property
    def _members(self) -> list[NDArray[np.int64]]:
        """Item numbers of each stratum that counts by itself."""
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
        """Mean over strata (rows) that have items; totals are the items of each."""
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
    """What gives Pearson's correlations with gold of a and b after swaps; all three are centred.

    With m = (a + b)/2, h = (a - b)/2 and s = -1 for a swapped item, otherwise 1, the mixtures are
    m + s h and m - s h, so that three products with the swaps are all it takes.
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
    """A sum of squares found by differences, 0 where it is rounding."""
    return np.where(found > 1e-12 * scale, found, 0.0)


class Ranks:
    """A variable that counts by its midranks."""

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
    """A variable that counts by its values."""

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


class Decisions(Outcome):
    """Matthews' correlation or F1 of predicted with true labels; exchanged are the predictions.

    Parameters
    ----------
    predicted, true : arrays of shape (n_items,)
        Labels: numbers or strings.
    measure : {"matthews", "f1", "macro-f1"}
        F1 is that of the label `positive`, macro-F1 the mean over the labels that occur.
    positive : label
    metrics : mapping, optional

    Notes
    -----
    Matthews' correlation is 0 where all predictions are the same, and NaN where all true labels
    are. F1 is 2 TP/(2 TP + FP + FN), NaN where that is 0/0.

    Examples
    --------
    >>> round(Decisions([1, 1, 0, 0, 1], [1, 1, 0, 1, 0]).value, 4)
    0.1667
    >>> Decisions([1, 1, 0, 0, 1], [1, 1, 0, 1, 0], measure="f1").value
    0.6666666666666666
    """

    fixed = ("true", "measure", "positive")

    def __init__(
        self,
        predicted: Any,
        true: Any,
        measure: str = "matthews",
        positive: Any = 1,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.predicted = labels(predicted, "predicted", "Decisions")
        self.true = labels(true, "true", "Decisions", len(self.predicted))
        if (self.true.dtype.kind in "US") != (self.predicted.dtype.kind in "US"):
            raise InputError(
                f"Decisions: predicted must be labels like the true ones, got "
                f"{self.predicted[0]!r} and {self.true[0]!r}."
            )
        measures = ("matthews", "f1", "macro-f1")
        self.measure = checks.choice(measure, "measure", "Decisions", measures)
        self.positive = positive
        known = self._labels(self)
        if measure == "f1" and len(known) > 1 and positive not in known.tolist():
            raise InputError(
                f"Decisions: positive must be one of the labels, got {positive!r} and labels "
                f"{', '.join(map(repr, known[:5].tolist()))}."
            )
        super().__init__(len(self.predicted), metrics)

    def _labels(self, other: Decisions) -> NDArray[Any]:
        every = np.concatenate([self.true, self.predicted, other.predicted])
        labels: NDArray[Any] = np.unique(every)
        return labels

    def _counted(self, labels: NDArray[Any]) -> Floats:
        """What each item (column) adds to the right, predicted and true counts of every label."""
        predicted = self.predicted == labels[:, None]
        true = self.true == labels[:, None]
        return np.vstack([predicted & true, predicted, true]).astype(np.float64)

    @cached_property
    def _own(self) -> tuple[Floats, NDArray[Any]]:
        labels = self._labels(self)
        return self._counted(labels), labels

    def _resampled(self, weights: Floats) -> Floats:
        counted, labels = self._own
        return self._scores(counted @ weights, labels)

    def _exchange(self, other: Decisions) -> Callable[[Floats], Floats]:
        labels = self._labels(other)
        mine, theirs = self._counted(labels), other._counted(labels)
        gap = theirs - mine
        ours, others = (part.sum(axis=1, keepdims=True) for part in (mine, theirs))

        def differences(swaps: Floats) -> Floats:
            moved = gap @ swaps
            return self._scores(ours + moved, labels) - self._scores(others - moved, labels)

        return differences

    def _scores(self, counts: Floats, labels: NDArray[Any]) -> Floats:
        right, predicted, true = np.split(counts, 3)
        if self.measure == "matthews":
            return matthews(right.sum(axis=0), predicted, true)
        f1 = 2 * right / (predicted + true)
        if self.measure == "macro-f1":
            seen = predicted + true > 0
            means: Floats = np.where(seen, f1, 0.0).sum(axis=0) / seen.sum(axis=0)
            return means
        place = np.flatnonzero(labels == self.positive)
        return f1[place[0]] if len(place) else np.full(counts.shape[1], np.nan)


def matthews(right: Floats, predicted: Floats, true: Floats) -> Floats:
    """Matthews' correlation from right answers and the counts of each label, one column a draw."""
    total = true.sum(axis=0)
    covariance = right * total - (predicted * true).sum(axis=0)
    predicted_spread = total**2 - (predicted**2).sum(axis=0)
    true_spread = total**2 - (true**2).sum(axis=0)
    correlation = covariance / np.sqrt(predicted_spread * true_spread)
    constant = np.where(true_spread > 0, 0.0, np.nan)
    return np.where((predicted_spread > 0) & (true_spread > 0), correlation, constant)


class Precision(Outcome):
    """The average precision of predicted scores; exchanged are the ranks of the predictions.

    The sum over thresholds of precision times the recall gained there; items of equal score share
    a threshold, before and after an exchange.

    Parameters
    ----------
    predicted : array of shape (n_items,)
        Scores, higher for items that are thought positive.
    gold : array of shape (n_items,)
        1 or True for positive items, otherwise 0 or False.
    metrics : mapping, optional

    Notes
    -----
    NaN where no item is positive.

    Examples
    --------
    >>> round(Precision([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0]).value, 4)
    0.8333
    """

    fixed = ("gold",)

    def __init__(
        self, predicted: Any, gold: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.predicted = numbers(predicted, "predicted", "Precision")
        self.gold = numbers(gold, "gold", "Precision", len(self.predicted))
        if not np.isin(self.gold, (0, 1)).all():
            raise InputError("Precision: gold must be 0 or 1 for every item.")
        super().__init__(len(self.predicted), metrics)

    @cached_property
    def _thresholds(self) -> Any:
        """Items at each distinct score, from the highest down."""
        _, codes = np.unique(-self.predicted, return_inverse=True)
        return indicator(codes)

    @cached_property
    def _ranks(self) -> Floats:
        return -Ranks(self.predicted).standard

    def _resampled(self, weights: Floats) -> Floats:
        hits = self._thresholds @ (weights * self.gold[:, None])
        return average_precision(np.cumsum(hits, 0), np.cumsum(self._thresholds @ weights, 0))

    def _exchange(self, other: Precision) -> Callable[[Floats], Floats]:
        _, codes = np.unique(np.stack([self._ranks, other._ranks]), return_inverse=True)
        mine, theirs = (indicator(part, codes.max() + 1) for part in codes.reshape(2, -1))
        gap, positive = theirs - mine, np.flatnonzero(self.gold)
        hit_gap = gap[:, positive]
        sides = [
            np.cumsum(side @ np.stack([self.gold, np.ones(self.n_items)], axis=1), axis=0)
            for side in (mine, theirs)
        ]

        def differences(swaps: Floats) -> Floats:
            hits = np.cumsum(hit_gap @ swaps.take(positive, axis=0), axis=0)
            items = np.cumsum(gap @ swaps, axis=0)
            ours, others = (
                average_precision(side[:, :1] + sign * hits, side[:, 1:] + sign * items)
                for side, sign in zip(sides, (1, -1), strict=True)
            )
            return ours - others

        return differences


def average_precision(hits: Floats, items: Floats) -> Floats:
    """Average precision from the positive and all items down to each threshold, by draw."""
    precision = hits / np.maximum(items, 1)
    gained = np.diff(hits, axis=0, prepend=0)
    scores: Floats = np.einsum("ij,ij->j", precision, gained) / hits[-1]
    return scores


class VMeasure(Outcome):
    """The V-measure of clusters: harmonic mean of homogeneity and completeness.

    1 - H(class|cluster)/H(class) and 1 - H(cluster|class)/H(cluster). The entropies are means
    over items of -log p(class|cluster), -log p(cluster|class) and -log p(cluster); these numbers
    are exchanged, as those of clusters mean nothing from one system to another.

    Parameters
    ----------
    predicted : array of shape (n_items,)
        Cluster of every item.
    true : array of shape (n_items,)
        Class of every item.
    metrics : mapping, optional

    Notes
    -----
    0 where all items are in one cluster, NaN where all are of one class.

    Examples
    --------
    >>> VMeasure([1, 1, 0, 0], ["a", "a", "b", "b"]).value
    1.0
    """

    fixed = ("true",)

    def __init__(
        self, predicted: Any, true: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.predicted = coded(predicted, "predicted", None, "VMeasure")
        self.true = coded(true, "true", len(self.predicted), "VMeasure")
        super().__init__(len(self.predicted), metrics)

    @cached_property
    def _cells(self) -> tuple[Integers, Integers]:
        """Cluster and class of each cell that has items, and the cell of each item."""
        keys = self.predicted * (int(self.true.max()) + 1) + self.true
        _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
        return np.stack([self.predicted[first], self.true[first]]), codes

    def _counts(self, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Items in each cell, and in the cluster and the class of each cell."""
        (cluster, label), codes = self._cells
        cells = indicator(codes) @ weights
        clusters, classes = indicator(cluster) @ cells, indicator(label) @ cells
        return cells, clusters[cluster], classes[label]

    def _resampled(self, weights: Floats) -> Floats:
        cells, clusters, classes = self._counts(weights)
        total = weights.sum(axis=0)

        def mean_log(wholes: Floats) -> Floats:
            logs = np.log(np.where(cells > 0, wholes / cells, 1.0))
            means: Floats = np.einsum("ij,ij->j", cells, logs) / total
            return means

        given_cluster, given_class = mean_log(clusters), mean_log(classes)
        joint = mean_log(np.broadcast_to(total, cells.shape))  # H(class, cluster)
        means = np.stack([given_cluster, given_class, joint - given_cluster])
        return v_measure(means, joint - given_class)

    @cached_property
    def _per_item(self) -> Floats:
        """-log p(class|cluster), -log p(cluster|class) and -log p(cluster) of every item."""
        codes = self._cells[1]
        cells, clusters, classes = (
            part[codes, 0] for part in self._counts(np.ones((self.n_items, 1)))
        )
        logs: Floats = np.log(
            np.stack([clusters / cells, classes / cells, self.n_items / clusters])
        )
        return logs

    def _exchange(self, other: VMeasure) -> Callable[[Floats], Floats]:
        gap = (other._per_item - self._per_item) / self.n_items
        ours, others = (part._per_item.mean(axis=1, keepdims=True) for part in (self, other))
        shares = np.bincount(self.true) / self.n_items
        entropy = np.float64(-shares @ np.log(shares))

        def differences(swaps: Floats) -> Floats:
            moved = gap @ swaps
            return v_measure(ours + moved, entropy) - v_measure(others - moved, entropy)

        return differences


def v_measure(means: Floats, class_entropy: Floats | np.float64) -> Floats:
    """2 h c/(h + c); means are H(class|cluster), H(cluster|class) and H(cluster), by draw.

    Homogeneity h and completeness c of a mixture of systems can come out below zero, and then
    count as zero.
    """
    given_cluster, given_class, entropy = means
    least = 1e-12  # an entropy below this is that of one value
    homogeneity = 1 - given_cluster / np.where(class_entropy > least, class_entropy, np.nan)
    completeness = 1 - np.where(entropy > least, given_class / entropy, 0.0)
    h, c = np.maximum(homogeneity, 0), np.maximum(completeness, 0)
    scores: Floats = 2 * h * c / np.where(h + c < least, 1.0, h + c)
    return scores


def indicator(codes: Integers, n_codes: int | None = None) -> Any:
    """Sparse matrix that sums the rows of each code."""
    n = len(codes)
    shape = (int(codes.max()) + 1 if n_codes is None else n_codes, n)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=shape)


def numbers(values: Any, name: str, caller: str, n_items: int | None = None) -> Floats:
    """values as finite float64 of shape (n_items,)."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{caller}: {name} must be numbers: {error}.") from None
    _expect_items(array, name, caller, n_items)
    if not np.isfinite(array).all():
        bad = np.flatnonzero(~np.isfinite(array))
        raise InputError(
            f"{caller}: {name} must be finite, got {array[bad[0]]} for {len(bad)} "
            f"{'item' if len(bad) == 1 else 'items'} (first: {bad[0]})."
        )
    return array


def labels(values: Any, name: str, caller: str, n_items: int | None = None) -> NDArray[Any]:
    """values as an array of labels of shape (n_items,)."""
    array = np.asarray(values)
    _expect_items(array, name, caller, n_items)
    return array


def coded(values: Any, name: str, n_items: int | None, caller: str = "Correlation") -> Integers:
    """The number of each item's label among the sorted labels."""
    _, codes = np.unique(labels(values, name, caller, n_items), return_inverse=True)
    return codes.astype(np.int64)


def _expect_items(array: NDArray[Any], name: str, caller: str, n_items: int | None) -> None:
    if array.ndim != 1 or not len(array):
        raise InputError(
            f"{caller}: {name} must have the shape (n_items,) with at least one item, got "
            f"{array.shape}."
        )
    if n_items is not None and len(array) != n_items:
        raise InputError(
            f"{caller}: {name} must have one entry for each of the {n_items} items, got "
            f"{len(array)}."
        )

"""Outcomes of decisions, rankings and clusters: Matthews, F1, average precision, V-measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.tasks.outcomes import Integers, Outcome, Ranks, coded, indicator, labels, numbers


@public
class Decisions(Outcome):
    """Matthews' correlation or F1 of predicted labels; predictions are what is exchanged.

    Parameters
    ----------
    predicted, true : arrays of shape (n_items,)
        Labels: numbers or strings.
    measure : {"matthews", "f1", "macro-f1"}
        F1 of the label `positive`; macro-F1 is the mean over the labels that occur.
    positive : label
    metrics : mapping, optional

    Notes
    -----
    Matthews' correlation is 0 if all predictions are equal, and NaN if all true labels are. F1 is
    2 TP/(2 TP + FP + FN), NaN if that is 0/0.

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
        self.predicted = labels(predicted, "predicted")
        self.true = labels(true, "true", len(self.predicted))
        if (self.true.dtype.kind in "US") != (self.predicted.dtype.kind in "US"):
            raise InputError(
                f"predicted must be labels like the true ones, got "
                f"{self.predicted[0]!r} and {self.true[0]!r}."
            )
        self.measure = checks.choice(measure, "measure", ("matthews", "f1", "macro-f1"))
        self.positive = positive
        known = self._labels(self)
        if measure == "f1" and len(known) > 1 and positive not in known.tolist():
            raise InputError(
                f"positive must be one of the labels, got {positive!r} and labels "
                f"{', '.join(map(repr, known[:5].tolist()))}."
            )
        super().__init__(len(self.predicted), metrics)

    def _labels(self, other: Decisions) -> NDArray[Any]:
        return np.unique(np.concatenate([self.true, self.predicted, other.predicted]))

    def _counted(self, labels: NDArray[Any]) -> Floats:
        """What each item (column) adds to the correct, predicted and true counts of each label."""
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
    """Matthews' correlation of each draw (column) from the counts of each label."""
    total = true.sum(axis=0)
    covariance = right * total - (predicted * true).sum(axis=0)
    predicted_spread = total**2 - (predicted**2).sum(axis=0)
    true_spread = total**2 - (true**2).sum(axis=0)
    correlation = covariance / np.sqrt(predicted_spread * true_spread)
    constant = np.where(true_spread > 0, 0.0, np.nan)
    return np.where((predicted_spread > 0) & (true_spread > 0), correlation, constant)


@public
class AveragePrecision(Outcome):
    """The average precision of predicted scores; their ranks are what is exchanged.

    The sum over thresholds of precision times the recall gained there. Items of equal score share
    a threshold, before and after an exchange.

    Parameters
    ----------
    predicted : array of shape (n_items,)
        Scores, higher for items predicted to be positive.
    gold : array of shape (n_items,)
        1 or True for positive items, otherwise 0 or False.
    metrics : mapping, optional

    Notes
    -----
    NaN if no item is positive.

    Examples
    --------
    >>> round(AveragePrecision([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0]).value, 4)
    0.8333
    """

    fixed = ("gold",)

    def __init__(
        self, predicted: Any, gold: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.predicted = numbers(predicted, "predicted")
        self.gold = numbers(gold, "gold", len(self.predicted))
        if not np.isin(self.gold, (0, 1)).all():
            raise InputError("gold must be 0 or 1 for every item.")
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

    def _exchange(self, other: AveragePrecision) -> Callable[[Floats], Floats]:
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
    """Average precision of each draw from the positive and all items down to each threshold."""
    precision = hits / np.maximum(items, 1)
    gained = np.diff(hits, axis=0, prepend=0)
    scores: Floats = np.einsum("ij,ij->j", precision, gained) / hits[-1]
    return scores


@public
class VMeasure(Outcome):
    """The V-measure of clusters: harmonic mean of homogeneity and completeness.

    These are 1 - H(class|cluster)/H(class) and 1 - H(cluster|class)/H(cluster). The entropies are
    means over items of -log p(class|cluster), -log p(cluster|class) and -log p(cluster). These
    numbers are exchanged, as cluster numbers mean nothing to another system.

    Parameters
    ----------
    predicted, true : arrays of shape (n_items,)
        Cluster and class of every item.
    metrics : mapping, optional

    Notes
    -----
    0 if all items are in one cluster, NaN if all are in one class.

    Examples
    --------
    >>> VMeasure([1, 1, 0, 0], ["a", "a", "b", "b"]).value
    1.0
    """

    fixed = ("true",)

    def __init__(
        self, predicted: Any, true: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.predicted = coded(predicted, "predicted", None)
        self.true = coded(true, "true", len(self.predicted))
        super().__init__(len(self.predicted), metrics)

    @cached_property
    def _cells(self) -> tuple[Integers, Integers]:
        """Cluster and class of each non-empty cell, and the cell of each item."""
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

    For a mixture of systems, homogeneity h and completeness c can be negative, and then count as
    zero.
    """
    given_cluster, given_class, entropy = means
    least = 1e-12  # a lower entropy means a single value
    homogeneity = 1 - given_cluster / np.where(class_entropy > least, class_entropy, np.nan)
    completeness = 1 - np.where(entropy > least, given_class / entropy, 0.0)
    h, c = np.maximum(homogeneity, 0), np.maximum(completeness, 0)
    scores: Floats = 2 * h * c / np.where(h + c < least, 1.0, h + c)
    return scores

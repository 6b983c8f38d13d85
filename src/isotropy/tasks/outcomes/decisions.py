"""Scores of decisions as a whole: Matthews' correlation and F1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.tasks.outcomes.base import Outcome, labels


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

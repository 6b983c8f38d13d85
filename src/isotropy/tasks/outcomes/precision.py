"""The average precision of a ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.tasks.outcomes.base import Outcome, indicator, numbers
from isotropy.tasks.outcomes.correlation import Ranks


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

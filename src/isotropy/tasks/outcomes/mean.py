"""A mean over items: accuracy, or a score a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotropy.linalg import Floats
from isotropy.tasks.outcomes.base import Outcome, numbers


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

"""Pair classification: does the cosine tell the pairs that belong together from the others?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import public
from isotropy.linalg import Floats
from isotropy.models.texts import Text
from isotropy.tasks import reading
from isotropy.tasks.base import Integers, Task, classes, positive_class
from isotropy.tasks.decisions import AveragePrecision


@public
class PairClassification(Task):
    """Average precision of the cosine for pairs that belong together.

    Along in the outcome's `metrics` come accuracy and F1 at the threshold that is best for each on
    the same items: upper bounds, as the threshold has seen them.

    Parameters
    ----------
    pairs : sequence of pairs of str
    labels : sequence
        Of two kinds.
    part, name
        As of every task.
    positive : label, optional
        Which of the two means that a pair belongs together; found by its name (1, true, yes,
        entailment, duplicate, ...) where it can be.

    Examples
    --------
    >>> task = PairClassification([("a cat", "a kitten"), ("a cat", "a car")], [1, 0])
    >>> task.score([[1, 0.1], [1, 0], [0.3, 1]]).value
    1.0
    """

    kind = "pair-classification"
    metric = "average_precision"
    per_item = ("labels",)

    def __init__(
        self,
        pairs: Sequence[tuple[Text, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "pair-classification",
        positive: Any = None,
    ) -> None:
        super().__init__(pairs, part, name)
        self.classes, numbers = classes(labels, self.n_items, name)
        self.labels = numbers == positive_class(self.classes, positive)

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        label: str | None = None,
        text: str | None = None,
        header: str | Sequence[str] | None = None,
        positive: str | None = None,
    ) -> Self:
        """The pairs in a file, a folder or a data set of the hub: label, sentence1, sentence2.

        Also understood are the columns of the GLUE sets.
        """
        table = reading.read(source, header)
        columns = table.choose(*reading.PAIRS, named=text, option="text")
        table, labels, n_unlabelled = table.labels(label)
        task = cls(table.texts(*columns), labels, table.parts, name or table.name, positive)
        task.n_unlabelled = n_unlabelled
        return task

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> AveragePrecision:
        cosines, gold = self._similarities(X, items), self.labels[items]
        return AveragePrecision(cosines, gold, best_decisions(cosines, gold))


def best_decisions(scores: Floats, gold: NDArray[np.bool_]) -> dict[str, float]:
    """Accuracy and F1 at their best thresholds, over all that tell two scores apart."""
    right, n_called, called_right = at_thresholds(scores, gold)
    f1 = 2 * called_right / np.maximum(n_called + gold.sum(), 1)
    return {"accuracy": float(right.max() / len(gold)), "f1": float(f1.max())}


def at_thresholds(scores: Floats, gold: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """(right answers, items called positive, those of them that are) by threshold.

    Threshold i calls the items with the i highest distinct scores positive; 0 calls none.
    """
    distinct, codes = np.unique(-scores, return_inverse=True)
    called = np.bincount(codes, minlength=len(distinct)).cumsum()
    hits = np.bincount(codes, weights=gold, minlength=len(distinct)).cumsum()
    n_called, called_right = np.append(0.0, called), np.append(0.0, hits)
    right = called_right + (len(gold) - gold.sum()) - (n_called - called_right)
    return right, n_called, called_right

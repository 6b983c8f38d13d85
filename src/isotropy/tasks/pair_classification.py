"""Pair classification: does the cosine tell related pairs from unrelated ones?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import public
from isotropy.linalg import Floats
from isotropy.models import Text
from isotropy.tasks.decisions import AveragePrecision
from isotropy.tasks.labelled import LabelledTask
from isotropy.tasks.outcomes import Integers, Outcome
from isotropy.tasks.reading import PAIRS


@public
class PairClassification(LabelledTask):
    """Average precision of the cosine as a score of related pairs.

    The outcome's `metrics` hold accuracy and F1, each at the threshold that is best for it on the
    same items: upper bounds, as the threshold has seen the labels.

    Read from the columns label, sentence1 and sentence2, or those of the GLUE sets.

    Parameters
    ----------
    pairs : sequence of pairs of str
    labels : sequence
        Two distinct values.
    part, name
        See `Task`.
    positive : label, optional
        The label of related pairs. By default it is recognised by its name: 1, true, yes,
        entailment, duplicate, ...

    Examples
    --------
    >>> task = PairClassification([("a cat", "a kitten"), ("a cat", "a car")], [1, 0])
    >>> task.score([[1, 0.1], [1, 0], [0.3, 1]]).value
    1.0
    """

    kind = "pair-classification"
    metric = "average_precision"
    text_columns = PAIRS

    def __init__(
        self,
        pairs: Sequence[tuple[Text, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "",
        positive: str | float | None = None,
    ) -> None:
        super().__init__(pairs, labels, part, name)
        self.labels = self.labels == self._positive(positive)

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Outcome:
        cosines, gold = self.similarities(X, items), self.labels[items]
        return AveragePrecision(cosines, gold, best_decisions(cosines, gold))


def best_decisions(scores: Floats, gold: NDArray[np.bool_]) -> dict[str, float]:
    """Accuracy and F1, each at its best threshold."""
    right, n_called, called_right = at_thresholds(scores, gold)
    f1 = 2 * called_right / np.maximum(n_called + gold.sum(), 1)
    return {"accuracy": float(right.max() / len(gold)), "f1": float(f1.max())}


def at_thresholds(scores: Floats, gold: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """(correct items, items called positive, true positives) at each threshold.

    Threshold i calls the items with the i highest distinct scores positive; 0 calls none.
    """
    distinct, codes = np.unique(-scores, return_inverse=True)
    called = np.bincount(codes, minlength=len(distinct)).cumsum()
    hits = np.bincount(codes, weights=gold, minlength=len(distinct)).cumsum()
    n_called, called_right = np.append(0.0, called), np.append(0.0, hits)
    right = called_right + (len(gold) - gold.sum()) - (n_called - called_right)
    return right, n_called, called_right

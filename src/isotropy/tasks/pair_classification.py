"""Pairs with labels: does the cosine tell related texts, or equal senses of a word, from others?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.models import Span, Text
from isotropy.tasks.base import LabelledTask
from isotropy.tasks.decisions import AveragePrecision
from isotropy.tasks.outcomes import Integers, Mean, Outcome
from isotropy.tasks.reading import PAIRS, Table, column_choices


@public
class PairClassification(LabelledTask):
    """Average precision of the cosine as a score of related pairs.

    The outcome's `metrics` hold accuracy and F1, each at the threshold that is best for it on the
    same items: upper bounds, as the threshold has seen the labels.

    Read from the columns label, sentence1 and sentence2, or those of the GLUE sets.

    Parameters
    ----------
    pairs : sequence of pairs of str
    labels, part, name
        A label of two for each pair; see `Task`.
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
        right, n_called, called_right = at_thresholds(cosines, gold)
        f1 = 2 * called_right / np.maximum(n_called + gold.sum(), 1)
        best = {"accuracy": float(right.max() / len(gold)), "f1": float(f1.max())}
        return AveragePrecision(cosines, gold, best)


@public
class WordInContext(PairClassification):
    """Accuracy of calling two occurrences of a word the same sense above a cosine threshold.

    The threshold is the most accurate one on the training items; of several, the middle one.

    Read from the columns label, sentence1, sentence2 and token_idx, which is "2-0" for the third
    word of the first sentence and the first word of the second, split at spaces; or, instead of
    token_idx, the character positions start1, end1, start2 and end2.

    Parameters
    ----------
    pairs : sequence of pairs of Span
        Two occurrences of a word.
    labels, part, name
        A label of two for each pair; see `Task`.
    positive : label, optional
        The label of the same sense. By default it is recognised by its name: T, 1, true, ...

    Examples
    --------
    >>> bank, shore = Span("a bank of sand", 2, 6), Span("on the bank", 7, 11)
    >>> money = Span("cash at the bank", 12, 16)
    >>> task = WordInContext([(bank, shore), (bank, money), (shore, money)], ["T", "F", "F"])
    >>> task.score([[1, 0], [1, 0.2], [0, 1]], items=[2], train=[0, 1]).value
    1.0
    """

    kind = "word-in-context"
    metric = "accuracy"
    supervised = True
    text_columns = column_choices("sentence1, sentence2")

    @classmethod
    def _items(cls, table: Table, columns: Sequence[str]) -> list[tuple[Text, ...]]:
        places = table.choose(*column_choices("token_idx; start1, end1, start2, end2"))
        return [
            _spans(pair, [str(table.columns[column][row]) for column in places], table.place(row))
            for row, pair in enumerate(table.texts(*columns))
        ]

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Mean:
        cosines = self.similarities(X, train)
        right, _, _ = at_thresholds(cosines, self.labels[train])
        best = np.flatnonzero(right == right.max())
        middle = best[(len(best) - 1) // 2]
        edges = np.concatenate([[np.inf], np.unique(cosines)[::-1], [-np.inf]])
        called = self.similarities(X, items) > (edges[middle] + edges[middle + 1]) / 2
        return Mean(called == self.labels[items])


def at_thresholds(scores: Floats, gold: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """(correct items, items called positive, true positives) at each threshold.

    Threshold i calls the items with the i highest distinct scores positive; 0 calls none.
    """
    _, codes = np.unique(-scores, return_inverse=True)
    n_called = np.append(0.0, np.bincount(codes).cumsum())
    called_right = np.append(0.0, np.bincount(codes, weights=gold).cumsum())
    right = called_right + (len(gold) - gold.sum()) - (n_called - called_right)
    return right, n_called, called_right


def _spans(pair: tuple[str, ...], places: list[str], where: str) -> tuple[Span, ...]:
    """The word in both sentences, from "word-word" numbers or four character positions."""
    try:
        if len(places) == 1:
            words = [list(re.finditer(r"\S+", text)) for text in pair]
            numbers = map(int, places[0].split("-"))
            ends = [found[n].span() for found, n in zip(words, numbers, strict=True)]
        else:
            first, last, other_first, other_last = map(int, places)
            ends = [(first, last), (other_first, other_last)]
        return tuple(Span(text, *both) for text, both in zip(pair, ends, strict=True))
    except (ValueError, IndexError) as error:
        raise InputError(
            f"{where} must say where the word is in both sentences, got "
            f"{', '.join(places)}. Correct that line."
        ) from error

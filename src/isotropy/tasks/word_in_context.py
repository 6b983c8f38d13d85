"""Word in context: is a word used in the same sense in two sentences?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.models import Span, Text
from isotropy.tasks.outcomes import Integers, Mean
from isotropy.tasks.pair_classification import PairClassification, at_thresholds
from isotropy.tasks.reading import Table, column_choices


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
    labels : sequence
        Two distinct values.
    part, name
        See `Task`.
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
        learned = threshold(self.similarities(X, train), self.labels[train])
        called = self.similarities(X, items) > learned
        return Mean(called == self.labels[items])


def threshold(scores: Floats, gold: NDArray[np.bool_]) -> float:
    """The score above which calling an item positive is most accurate."""
    right, _, _ = at_thresholds(scores, gold)
    best = np.flatnonzero(right == right.max())
    middle = best[(len(best) - 1) // 2]
    edges = np.concatenate([[np.inf], np.unique(scores)[::-1], [-np.inf]])
    return float((edges[middle] + edges[middle + 1]) / 2)


def _spans(pair: tuple[str, ...], places: list[str], where: str) -> tuple[Span, ...]:
    """The word in both sentences, from "word-word" numbers or four character positions."""
    try:
        if len(places) == 1:
            found = (
                _word(text, int(n)) for text, n in zip(pair, places[0].split("-"), strict=True)
            )
        else:
            ends = iter(map(int, places))
            found = (Span(text, next(ends), next(ends)) for text in pair)
        return tuple(found)
    except (ValueError, IndexError) as error:
        raise InputError(
            f"{where} must say where the word is in both sentences, got "
            f"{', '.join(places)}. Correct that line."
        ) from error


def _word(text: str, number: int) -> Span:
    return Span(text, *list(re.finditer(r"\S+", text))[number].span())

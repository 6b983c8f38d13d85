"""Word in context: is a word used in the same sense in two sentences?"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.models.texts import Span
from isotropy.tasks import reading
from isotropy.tasks.base import Integers, Task, classes, positive_class
from isotropy.tasks.outcomes import Mean
from isotropy.tasks.pair_classification import at_thresholds

PLACES = (("token_idx",), ("start1", "end1", "start2", "end2"))


@public
class WordInContext(Task):
    """Accuracy of "the same sense" where the cosine of two occurrences exceeds a threshold.

    The threshold is the one that is right most often on the training items; of several, the middle
    one.

    Parameters
    ----------
    pairs : sequence of pairs of Span
        Two occurrences of a word.
    labels : sequence
        Of two kinds.
    part, name
        As of every task.
    positive : label, optional
        Which of the two means the same sense; found by its name (T, 1, true, ...) where it can be.

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
    per_item = ("labels",)

    def __init__(
        self,
        pairs: Sequence[tuple[Span, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "word-in-context",
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
        positive: str | None = None,
        header: str | Sequence[str] | None = None,
    ) -> Self:
        """The pairs in a file, a folder or a data set of the hub.

        Its columns are label, sentence1, sentence2 and token_idx, which is "2-0" for the third
        word of the first sentence and the first of the second, counted between spaces; or the
        characters start1, end1, start2 and end2.
        """
        table = reading.read(source, header)
        columns = table.choose(("sentence1", "sentence2"))
        places = table.choose(*PLACES)
        table, labels, n_unlabelled = table.labels("label")
        pairs = [
            _spans(pair, [str(table.columns[column][row]) for column in places], table.place(row))
            for row, pair in enumerate(table.texts(*columns))
        ]
        task = cls(pairs, labels, table.parts, name or table.name, positive)
        task.n_unlabelled = n_unlabelled
        return task

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> Mean:
        learned = threshold(self._similarities(X, train), self.labels[train])
        called = self._similarities(X, items) > learned
        return Mean(called == self.labels[items])


def threshold(scores: Floats, gold: NDArray[np.bool_]) -> float:
    """The score above which to say yes, so as to be right most often."""
    right, _, _ = at_thresholds(scores, gold)
    best = np.flatnonzero(right == right.max())
    middle = best[(len(best) - 1) // 2]
    edges = np.concatenate([[np.inf], np.unique(scores)[::-1], [-np.inf]])
    return float((edges[middle] + edges[middle + 1]) / 2)


def _spans(pair: tuple[str, ...], places: list[str], where: str) -> tuple[Span, ...]:
    """The occurrences in a pair of sentences, by "word-word" or by four characters."""
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

"""Similarity: do cosines rank pairs of sentences, or of words, as people do?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models import Text
from isotropy.tasks.base import TableTask, components
from isotropy.tasks.outcomes import Correlation, Integers, labels, numbers
from isotropy.tasks.reading import PAIRS, SCORES, Table, column_choices


@public
class STS(TableTask):
    """Spearman's correlation of the cosines of sentence pairs with human scores.

    The outcome's `metrics` hold Pearson's.

    Read from the columns score, sentence1, sentence2 and optionally subset, or those of SICK, of
    GLUE's STS-B and of other common sets.

    Parameters
    ----------
    pairs : sequence of pairs of str
    scores : sequence of float
        Higher is more similar.
    subset : sequence of str, optional
        The source of each pair.
    part, name
        See `Task`.
    combine : {"all", "mean", "wmean"}, optional
        One correlation over all pairs, the default for sentences, or the mean over subsets, the
        default for words, or that weighted by their size.
    similarity : {"cosine", "dot"}
        How two vectors are compared.

    Notes
    -----
    The literature reports STS12 to STS16 in all three ways, and they differ by whole points, so
    always say which one you report. `metric` does: "spearman (mean of subsets)".

    Examples
    --------
    >>> task = STS([("a cat", "a kitten"), ("a cat", "a car"), ("a car", "a kitten")], [5, 1, 0])
    >>> task.texts
    ['a cat', 'a kitten', 'a car']
    >>> round(task.score([[1, 0.1], [1, 0], [0.3, 1]]).value, 3)
    1.0
    """

    kind = "sts"
    text_columns = PAIRS
    answer = "score"
    per_item = ("scores", "subsets")
    default_name: ClassVar[str] = ""  # the kind
    default_combine: ClassVar[str] = "all"
    correlations: ClassVar[tuple[str, str]] = ("spearman", "pearson")  # the main one first
    strata: ClassVar[str] = "subsets"
    subsets: NDArray[Any]

    def __init__(
        self,
        pairs: Sequence[tuple[Text, ...]],
        scores: Any,
        subset: Sequence[str] | None = None,
        part: Sequence[str] | None = None,
        name: str = "",
        combine: str | None = None,
        similarity: str = "cosine",
    ) -> None:
        super().__init__(pairs, part, name or self.default_name)
        combine = self.default_combine if combine is None else combine
        self.combine = checks.choice(combine, "combine", ("all", "mean", "wmean"))
        self.similarity = checks.choice(similarity, "similarity", ("cosine", "dot"))
        self.scores = numbers(scores, "scores", self.n_items)
        given = [self.name] * self.n_items if subset is None else subset
        self.subsets = labels(given, "subset", self.n_items)
        apart = np.zeros(self.n_items, int) if combine == "all" else self.subsets
        for label in np.unique(apart).tolist():
            values = np.unique(self.scores[apart == label])
            if len(values) < 2:
                where = f"{self.name!r}" if combine == "all" else f"{label!r} in {self.name!r}"
                raise InputError(
                    f"scores of {where} must differ, got {values[0]:g} for every "
                    "pair. A correlation needs two values."
                )

    @classmethod
    def _answers(cls, table: Table, column: str | None) -> tuple[Table, dict[str, Any]]:
        (score,) = table.choose(*SCORES, named=column, option="score")
        table = table.labelled(score)
        return table, {"scores": table.numbers(score), "subset": table.subsets()}

    @property
    def metric(self) -> str:  # type: ignore[override]
        """The correlation, and how several subsets are combined."""
        if self.combine == "all" or len(np.unique(self.subsets)) < 2:
            return self.correlations[0]
        mean = "mean" if self.combine == "mean" else "weighted mean"
        return f"{self.correlations[0]} ({mean} of {self.strata})"

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Correlation:
        predicted = self.similarities(X, items, self.similarity)
        main, other = (
            Correlation(predicted, self.scores[items], kind, self.subsets[items], self.combine)
            for kind in self.correlations
        )
        main.metrics[other.kind] = other.value
        return main


@public
class WordSimilarity(STS):
    """Pearson's correlation of word similarities with human scores, averaged over sets.

    The outcome's `metrics` hold Spearman's.

    Read from the columns word1, word2 and score, or those of SimLex-999 and WordSim-353; each
    file of a folder is a set. Files without a header, such as those of MEN and RW, need
    header="word1,word2,score".

    Parameters
    ----------
    pairs, scores, part, name, combine, similarity
        See `STS`.
    subset : sequence of str, optional
        The set of each pair, such as "men3000".

    Attributes
    ----------
    n_listed, n_kept : dict of int
        The number of pairs in each set, and of those with both words known.

    Notes
    -----
    Words recur in many pairs (all 3,000 pairs of MEN are connected), so a group is a single pair
    here, together with the same pair in other sets.

    Examples
    --------
    >>> task = WordSimilarity([("sun", "moon"), ("sun", "tax"), ("cat", "tiger")], [7, 1, 9])
    >>> task = task.known({"sun", "moon", "tax"})
    >>> task.texts, task.n_listed, task.n_kept
    (['sun', 'moon', 'tax'], {'words': 3}, {'words': 2})
    """

    kind = "word-similarity"
    text_columns = column_choices("word1, word2; first, second; w1, w2; left, right")
    default_name = "words"
    default_combine = "mean"
    correlations = ("pearson", "spearman")
    strata = "sets"

    @cached_property
    def n_listed(self) -> dict[str, int]:
        return dict(Counter(self.subsets.tolist()))

    @property
    def n_kept(self) -> dict[str, int]:
        return dict.fromkeys(self.n_listed, 0) | Counter(self.subsets.tolist())

    def known(self, vocabulary: Container[str]) -> Self:
        """The same task with only the pairs whose words are both in the vocabulary.

        The vocabulary of a model's input embeddings lacks words that split into several tokens.
        Sets with fewer than two known pairs are left out.
        """
        inside = np.array([text in vocabulary for text in self.texts])
        kept = np.flatnonzero(inside[self.members].all(axis=1))
        sets, place, counts = np.unique(self.subsets[kept], return_inverse=True, return_counts=True)
        kept = kept[counts[place] >= 2] if len(sets) else kept
        if not len(kept):
            raise InputError(
                f"vocabulary must hold both words of two pairs of {self.name!r}, "
                "got none. Check how its words are written."
            )
        new = self.subset(kept)
        new.n_listed = self.n_listed
        return new

    def item_groups(self) -> Integers:
        pairs = np.sort(self.identities[self.members], axis=1)
        _, numbers = np.unique(pairs, axis=0, return_inverse=True)
        return components(numbers.reshape(-1, 1))

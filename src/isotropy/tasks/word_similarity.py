"""Word similarity: are words that people find similar or related close to each other?"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models import Text
from isotropy.tasks.base import components
from isotropy.tasks.correlation import Correlation
from isotropy.tasks.outcomes import Integers
from isotropy.tasks.reading import column_choices
from isotropy.tasks.sts import STS


@public
class WordSimilarity(STS):
    """Pearson's correlation of word similarities with human scores, averaged over sets.

    The outcome's `metrics` hold Spearman's.

    Read from the columns word1, word2 and score, or those of SimLex-999 and WordSim-353; each
    file of a folder is a set. Files without a header, such as those of MEN and RW, need
    header="word1,word2,score".

    Parameters
    ----------
    pairs : sequence of pairs of str
    scores : sequence of float
    subset : sequence of str, optional
        The set of each pair, such as "men3000".
    part, name, combine
        See `STS`.
    similarity : {"cosine", "dot"}
        How two vectors are compared.

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
    primary = "pearson"
    secondary = "spearman"
    strata = "sets"
    text_columns = column_choices("word1, word2; first, second; w1, w2; left, right")

    def __init__(
        self,
        pairs: Sequence[tuple[Text, ...]],
        scores: Any,
        subset: Sequence[str] | None = None,
        part: Sequence[str] | None = None,
        name: str = "words",
        combine: str = "mean",
        similarity: str = "cosine",
    ) -> None:
        super().__init__(pairs, scores, subset, part, name, combine)
        options = ("cosine", "dot")
        self.similarity = checks.choice(similarity, "similarity", options)
        self.n_listed = self.n_kept = self._counts()

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
        new.n_kept = dict.fromkeys(self.n_listed, 0) | new._counts()
        return new

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Correlation:
        return self._correlation(self.similarities(X, items, self.similarity), items)

    def item_groups(self) -> Integers:
        _, numbers = np.unique(
            np.sort(self.identities[self.members], axis=1), axis=0, return_inverse=True
        )
        return components(numbers.reshape(-1, 1))

    def _counts(self) -> dict[str, int]:
        names = self.subsets.tolist()
        return {name: names.count(name) for name in dict.fromkeys(names)}

"""Word similarity: are words near each other that people find similar or related?"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models.texts import Text
from isotropy.tasks.base import Integers, components
from isotropy.tasks.correlation import Correlation
from isotropy.tasks.sts import STS

WORDS = (("word1", "word2"), ("first", "second"), ("w1", "w2"), ("left", "right"))


@public
class WordSimilarity(STS):
    """Pearson's correlation of word similarities with people's scores, the mean over sets.

    Spearman's comes along in the outcome's `metrics`.

    Parameters
    ----------
    pairs : sequence of pairs of str
    scores : sequence of float
    subset : sequence of str, optional
        The set that each pair is of, such as "men3000".
    part, name, combine
        As of `STS`.
    similarity : {"cosine", "dot"}
        Of the two vectors.

    Attributes
    ----------
    n_listed, n_kept : dict of int
        Pairs of each set, and those of them whose words are both known.

    Notes
    -----
    Words return in many pairs (those of MEN hang together, all 3,000), so a pair is its own group
    here, together with the same pair in another set.

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

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        combine: str = "mean",
        similarity: str = "cosine",
        header: str | Sequence[str] | None = None,
        text: str | None = None,
        score: str | None = None,
    ) -> Self:
        """The pairs in a file of columns word1, word2 and score, or in a folder of such files.

        Each file of a folder is a set. Also understood are the columns of SimLex-999 and
        WordSim-353; sets without a header, such as MEN and RW, need one: "word1,word2,score".
        """
        options = {"combine": combine, "similarity": similarity}
        return cls._read(source, name, WORDS, header, text, score, **options)

    def known(self, vocabulary: Container[str]) -> Self:
        """The task with only the pairs whose two words are in the vocabulary.

        That of a model's input embeddings has no words that split into several pieces. A set of
        which fewer than two pairs are left is left out.
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

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> Correlation:
        return self._correlation(self._similarities(X, items, self.similarity), items)

    def _groups(self) -> Integers:
        _, numbers = np.unique(
            np.sort(self.identities[self.members], axis=1), axis=0, return_inverse=True
        )
        return components(numbers.reshape(-1, 1))

    def _counts(self) -> dict[str, int]:
        names = self.subsets.tolist()
        return {name: names.count(name) for name in dict.fromkeys(names)}

"""Texts as means of the vectors of their words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.models import Rows
from isotropy.sources.texts import Text, shown
from isotropy.sources.tokens import Integers, Tokens

WORD = re.compile(r"[^\W_]+(?:['\u2019.\-][^\W_]+)*")
PIECE = re.compile(r"[^\W_]+")
NONE = -1


class WordMeans:
    """An encoder of texts by a file of word vectors: the mean of the known words of each.

    A word is looked up as it is written, then in lower case, then in the pieces that hyphens,
    apostrophes and dots leave of it. Punctuation does not count. A text without a known word is a
    zero row.

    Parameters
    ----------
    vectors : KeyedVectors
        With a word as the key of each row.
    texts : sequence of texts
        Those whose unknown words are counted.

    Examples
    --------
    >>> words = KeyedVectors([[1.0, 0.0], [0.0, 1.0]], ["sun", "moon"])
    >>> means = WordMeans(words, ["Sun, moon!", "the sun"])
    >>> means.encode(["Sun, moon!", "the sun"]).tolist(), means.n_words, means.n_unknown
    ([[0.5, 0.5], [1.0, 0.0]], 4, 1)
    """

    def __init__(self, vectors: KeyedVectors, texts: Sequence[Text]) -> None:
        self.vectors = vectors
        self._rows: dict[str, list[int]] = {}
        found = [self._found(text) for text in texts]
        self.n_texts, self.n_empty = len(texts), sum(not rows for rows, _ in found)
        self.n_unknown = sum(n_unknown for _, n_unknown in found)
        self.n_words = self.n_unknown + sum(len(rows) for rows, _ in found)

    @property
    def notes(self) -> list[str]:
        """What is done with the texts, and how many words are unknown."""
        empty = f"; {self.n_empty:,} of {self.n_texts:,} texts have no known word and are zero"
        return [
            "Each text is the mean of the vectors of its words, since the vectors are of words: "
            f"{self.n_unknown:,} of {self.n_words:,} words are unknown and left out"
            f"{empty if self.n_empty else ''}."
        ]

    def encode(self, texts: Sequence[Text]) -> Rows:
        """The mean of each text's known words."""
        return self.tokens(texts).means()

    def tokens(self, texts: Sequence[Text]) -> Tokens:
        """The rows of each text's known words."""
        found = [self._found(text)[0] or [NONE] for text in texts]
        starts: Integers = np.cumsum([0, *map(len, found)])
        numbers = np.array([row for rows in found for row in rows], dtype=np.int64)
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            rows = self.vectors.vectors[numbers].astype(np.float32)
        rows[numbers == NONE] = 0
        return Tokens(rows, starts)

    def _found(self, text: Text) -> tuple[list[int], int]:
        """The rows of a text's known words, and the number of unknown ones."""
        words = WORD.findall(shown(text))
        found = [self._of_word(word) for word in words]
        return [row for rows in found for row in rows], sum(not rows for rows in found)

    def _of_word(self, word: str) -> list[int]:
        if word not in self._rows:
            self._rows[word] = self._look_up([word]) or self._look_up(PIECE.findall(word))
        return self._rows[word]

    def _look_up(self, words: Sequence[str]) -> list[int]:
        known: Any = self.vectors.words
        rows = (known.get(word, known.get(word.lower())) for word in words)
        return [int(row) for row in rows if row is not None]


def averaged(vectors: KeyedVectors, texts: Sequence[Text]) -> KeyedVectors | WordMeans:
    """What encodes texts that are no keys: means of words, where the keys are words.

    That is where fewer than half of the texts are keys and at least half of their words are.
    """
    if 2 * sum(text in vectors for text in texts) >= len(texts):
        return vectors
    found = WordMeans(vectors, texts)
    return found if 0 < found.n_words >= 2 * found.n_unknown else vectors

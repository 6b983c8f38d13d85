"""Rows of tokens that belong to texts, and what is known of each token."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isotropy.sources.models import Encoding, Rows

if TYPE_CHECKING:
    import pyarrow as pa

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """Rows of many texts, at least one each: those of text i are rows[starts[i] : starts[i + 1]].

    Examples
    --------
    >>> tokens = joined([np.array([[1.0, 3.0], [3.0, 5.0]]), np.array([[7.0, 7.0]])])
    >>> tokens.n_texts, tokens.means().tolist()
    (2, [[2.0, 4.0], [7.0, 7.0]])
    """

    rows: Rows
    starts: Integers

    @property
    def n_texts(self) -> int:
        return len(self.starts) - 1

    def of(self, texts: Integers) -> Integers:
        """Numbers of the rows of these texts."""
        lengths = np.diff(self.starts)[texts]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Integers = np.repeat(self.starts[texts], lengths) + offsets
        return rows

    def means(self, rows: Rows | None = None) -> Rows:
        """The mean row of each text, of these rows or of others in their places."""
        rows = self.rows if rows is None else rows
        sums = np.add.reduceat(rows, self.starts[:-1], axis=0, dtype=np.float64)
        return (sums / np.diff(self.starts)[:, None]).astype(np.float32)

    def split(self) -> list[Rows]:
        """The rows of each text."""
        return np.split(self.rows, self.starts[1:-1])


def joined(rows: Sequence[Rows]) -> Tokens:
    """The rows of many texts, given those of each."""
    starts = np.cumsum([0] + [len(part) for part in rows])
    return Tokens(np.concatenate(rows), starts.astype(np.int64))


def stacked(parts: Sequence[Tokens]) -> Tokens:
    """The rows of all texts of several parts."""
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    return Tokens(rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def labels(
    texts: Sequence[str],
    encodings: Sequence[Encoding],
    kept: Sequence[Integers],
    tokenizer: Any,
    first_text: int = 0,
) -> pa.Table:
    """A table with a row for each token that is kept of each text."""
    import pyarrow as pa

    lengths = [len(numbers) for numbers in kept]
    parts = list(zip(encodings, kept, strict=True))
    ids = np.concatenate([np.asarray(e.ids)[numbers] for e, numbers in parts])
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    places = np.concatenate([e.offsets[numbers] for e, numbers in parts]).tolist()
    whole = np.repeat(np.array(texts, dtype=object), lengths)
    pieces = [text[a:b] or token for text, (a, b), token in zip(whole, places, tokens, strict=True)]
    return pa.table(
        {
            "token": tokens,
            "token_id": ids,
            "sentence": first_text + np.repeat(np.arange(len(texts)), lengths),
            "position": np.concatenate(kept),
            "is_special": np.concatenate([e.special[numbers] for e, numbers in parts]),
            "is_punctuation": [is_punctuation(piece) for piece in pieces],
        }
    )


def is_punctuation(piece: str) -> bool:
    """Whether a piece of text is made of punctuation and symbols alone.

    Examples
    --------
    >>> [is_punctuation(piece) for piece in (" --", "don't", " ", "€")]
    [True, False, False, True]
    """
    bare = piece.strip()
    return bool(bare) and all(unicodedata.category(c)[0] in "PS" for c in bare)

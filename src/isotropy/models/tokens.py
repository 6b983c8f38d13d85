"""Token rows, grouped by the texts they belong to, and a table that describes each token."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from isotropy.models.models import Encoding, Float32Array

if TYPE_CHECKING:
    import pyarrow as pa

Integers = NDArray[np.int64]

BLOCK_ELEMENTS = 1 << 21  # numbers in a block of token rows: 8 MB of float32


@dataclass(frozen=True)
class TokenRows:
    """Rows of many texts, at least one each; text i has rows[starts[i] : starts[i + 1]].

    Examples
    --------
    >>> tokens = joined([np.array([[1.0, 3.0], [3.0, 5.0]]), np.array([[7.0, 7.0]])])
    >>> tokens.n_texts, tokens.means().tolist()
    (2, [[2.0, 4.0], [7.0, 7.0]])
    """

    rows: Float32Array
    starts: Integers

    @property
    def n_texts(self) -> int:
        return len(self.starts) - 1

    def of(self, texts: Integers) -> Integers:
        """Positions of the rows of these texts."""
        lengths = np.diff(self.starts)[texts]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Integers = np.repeat(self.starts[texts], lengths) + offsets
        return rows

    def means(self, rows: Float32Array | None = None) -> Float32Array:
        """The mean row of each text; `rows`, if given, replace the rows."""
        rows = self.rows if rows is None else rows
        lengths = np.diff(self.starts)
        found = np.empty((self.n_texts, rows.shape[1]), dtype=np.float32)
        for texts in bounded(lengths, rows.shape[1]):  # sums in float64 take a copy of the rows
            bounds = self.starts[texts.start : texts.stop + 1]
            part = rows[bounds[0] : bounds[-1]].astype(np.float64)
            entries = (np.ones(len(part)), np.arange(len(part)), bounds - bounds[0])
            members = csr_array(entries, shape=(len(bounds) - 1, len(part)))
            found[texts] = (members @ part) / lengths[texts, None]  # np.add.reduceat takes longer
        return found

    def split(self) -> list[Float32Array]:
        """The rows of each text."""
        return np.split(self.rows, self.starts[1:-1])


def joined(rows: Sequence[Float32Array]) -> TokenRows:
    """Token rows from the rows of each text."""
    starts = np.cumsum([0] + [len(part) for part in rows])
    return TokenRows(np.concatenate(rows), starts.astype(np.int64))


class Stack:
    """Rows of texts that arrive in parts, held in memory once."""

    def __init__(self) -> None:
        self._rows: Float32Array | None = None
        self._lengths: list[Integers] = []
        self._n_rows = 0

    def add(self, part: TokenRows) -> None:
        """Append the rows of more texts."""
        n_rows = self._n_rows + len(part.rows)
        if self._rows is None:
            self._rows = np.empty(part.rows.shape, part.rows.dtype)
        elif n_rows > len(self._rows):  # grows in place, by an eighth more than needed
            self._rows.resize((n_rows + n_rows // 8, self._rows.shape[1]), refcheck=False)
        self._rows[self._n_rows : n_rows] = part.rows
        self._lengths.append(np.diff(part.starts))
        self._n_rows = n_rows

    def tokens(self) -> TokenRows:
        """The rows of all texts."""
        assert self._rows is not None
        self._rows.resize((self._n_rows, self._rows.shape[1]), refcheck=False)
        lengths = np.concatenate(self._lengths)
        return TokenRows(self._rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def bounded(lengths: Integers, n_features: int) -> Iterator[slice]:
    """Slices of consecutive texts whose rows fit into a block."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        done = ends[start] - lengths[start]
        most = done + max(1, BLOCK_ELEMENTS // n_features)
        stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
        yield slice(start, stop)
        start = stop


def labels(
    texts: Sequence[str],
    encodings: Sequence[Encoding],
    kept: Sequence[Integers],
    tokenizer: Any,
    first_text: int = 0,
) -> pa.Table:
    """A table with one row for each kept token of each text."""
    import pyarrow as pa

    lengths = [len(numbers) for numbers in kept]
    parts = list(zip(encodings, kept, strict=True))
    ids = np.concatenate([np.asarray(e.ids)[numbers] for e, numbers in parts])
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    places = np.concatenate([e.offsets[numbers] for e, numbers in parts]).tolist()
    repeated = np.repeat(np.array(texts, dtype=object), lengths)
    pieces = [
        text[a:b] or token for text, (a, b), token in zip(repeated, places, tokens, strict=True)
    ]
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
    """Whether a piece of text consists of punctuation and symbols only.

    Examples
    --------
    >>> [is_punctuation(piece) for piece in (" --", "don't", " ", "€")]
    [True, False, False, True]
    """
    bare = piece.strip()
    return bool(bare) and all(unicodedata.category(c)[0] in "PS" for c in bare)

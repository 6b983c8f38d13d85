"""The vectors of texts, as a source."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isotropy.errors import IsotropyWarning
from isotropy.sources.base import Batch, Chunk
from isotropy.sources.digests import digest
from isotropy.sources.texts import Text, Texts

if TYPE_CHECKING:
    import pyarrow as pa

    from isotropy.sources.encoder import Encoder


class TextSource:
    """The vectors of texts by an encoder: a block of texts is run when it is read, and each time.

    With a row a token, the texts are tokenised when the source is made, which tells how many rows
    there are. Columns that come along: of tokens their labels, otherwise the texts, under
    `text_column` where that is set, and what stands beside them in their file.
    """

    device = "cpu"
    dtype = "float32"
    text_column: str | None = None

    def __init__(self, encoder: Encoder, texts: Texts) -> None:
        encoder.check_one_layer("a source")
        self.encoder, self.texts = encoder, texts
        self.n_features = encoder.n_features
        self.n_blank = texts.n_blank
        self._cut: dict[int, int] = {}
        self._carry = True
        self._chunks = self._counted()
        self.n_samples = sum(chunk.n_rows for chunk in self._chunks)

    @property
    def n_truncated(self) -> int:
        """Texts that were cut, of those that were read so far."""
        return sum(self._cut.values())

    def chunks(self) -> list[Chunk]:
        return self._chunks

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        number, first_text = chunk.place
        block = self.texts.blocks()[number]
        texts = self.texts.read(block)
        (found,), n_cut = self.encoder.block(texts)
        self._say_cut(number, n_cut)
        carried = self._carried(texts, block, first_text) if self._carry else None
        yield Batch(chunk.first_row, found.rows, carried=carried)

    def bare(self) -> TextSource:
        """The same source without the other columns."""
        found = copy.copy(self)
        found._carry = False
        return found

    def identity(self) -> dict[str, Any]:
        """Plain values that tell these rows from others."""
        texts = hashlib.sha256()
        for block in self.texts.blocks():
            for text in self.texts.read(block):
                texts.update(repr(text).encode())
        return {
            "kind": "texts",
            **self.encoder.identity(),
            "repairs": digest([self.encoder.repair, self.encoder.sentence_repair]),
            "texts": texts.hexdigest(),
        }

    def _counted(self) -> list[Chunk]:
        """A chunk for each block."""
        chunks, first_row, first_text = [], 0, 0
        for number, block in enumerate(self.texts.blocks()):
            n_rows = self._n_tokens(number) if self.encoder.pool == "tokens" else block[0]
            chunks.append(Chunk(first_row, n_rows, place=(number, first_text)))
            first_row, first_text = first_row + n_rows, first_text + block[0]
        return chunks

    def _n_tokens(self, number: int) -> int:
        texts = self.texts.read(self.texts.blocks()[number])
        encodings, kept = self.encoder.tokenized(texts)
        self._say_cut(number, sum(encoding.truncated for encoding in encodings))
        return sum(map(len, kept))

    def _carried(self, texts: Sequence[Text], block: tuple[int, ...], first_text: int) -> pa.Table:
        if self.encoder.pool == "tokens":
            table, name = self.encoder.labels(texts, first_text), "token"
        else:
            table = self.texts.table(block)
            name = table.column_names[0]
        renamed = {name: self.text_column or name}
        return table.rename_columns([renamed.get(n, n) for n in table.column_names])

    def _say_cut(self, block: int, n_cut: int) -> None:
        if n_cut and not self.n_truncated:
            warnings.warn(
                f"Encoder: texts of more than {self.encoder.max_length} tokens are cut off there; "
                "the source's n_truncated counts them.",
                IsotropyWarning,
                stacklevel=4,
            )
        self._cut[block] = n_cut

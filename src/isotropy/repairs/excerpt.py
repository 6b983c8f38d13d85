"""A few rows of a source, to judge it by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from isotropy.sources import Batch, Chunk, Source


class Excerpt:
    """About `n_rows` rows of a source, or all where there are fewer, in evenly spaced chunks.

    So a large file is judged without reading it: at least four chunks are begun, and no more of
    each is read than its share of the rows.
    """

    def __init__(self, source: Source, n_rows: int = 10_000) -> None:
        self.source = getattr(source, "bare", lambda: source)()
        self.n_features, self.device = source.n_features, source.device
        chunks = source.chunks()
        n_chunks = min(len(chunks), max(4, -(-n_rows * len(chunks) // source.n_samples)))
        picked = np.linspace(0, len(chunks) - 1, n_chunks).round().astype(int)
        self._chunks = [chunks[i] for i in picked]
        self._rows_each = -(-n_rows // n_chunks)

    @property
    def n_samples(self) -> int:
        return sum(min(chunk.n_rows, self._rows_each) for chunk in self._chunks)

    def chunks(self) -> list[Chunk]:
        return self._chunks

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        n_left = self._rows_each
        for batch in self.source.read(chunk):
            yield first_rows(batch, n_left)
            n_left -= batch.rows.shape[0]
            if n_left <= 0:
                return


def first_rows(batch: Batch, n_rows: int) -> Batch:
    """The batch without what follows its first rows."""
    return replace(
        batch,
        rows=batch.rows[:n_rows],
        weights=None if batch.weights is None else batch.weights[:n_rows],
        numbers=None if batch.numbers is None else batch.numbers[:n_rows],
    )

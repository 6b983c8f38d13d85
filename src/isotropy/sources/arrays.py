"""Vectors in memory: numpy arrays, torch tensors, and some of their rows."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources.base import (
    Batch,
    Chunk,
    Source,
    SourceView,
    default_rows,
    even_chunks,
    finite_only,
)


class ArraySource(Source):
    """The rows of an array or tensor, which is never copied as a whole.

    Parameters
    ----------
    X : array or tensor of shape (n_samples, n_features)
    sample_weight : array of shape (n_samples,), optional
    chunk_rows : int, optional
        Rows of a chunk; by default about 64 MB of float32.
    skip_bad_rows : bool
        Leave out rows with NaN, infinity or masked values, instead of raising.
    """

    def __init__(
        self,
        X: Array,
        sample_weight: object = None,
        *,
        chunk_rows: int | None = None,
        skip_bad_rows: bool = False,
    ) -> None:
        if checks.flag(skip_bad_rows, "skip_bad_rows") and checks.has_mask(X):
            X = checks.unmasked(X)
        self.X = checks.matrix(X)
        self.n_samples, self.n_features = map(int, self.X.shape)
        self.dtype = str(self.X.dtype).removeprefix("torch.")
        self.device = str(self.X.device) if checks.is_tensor(self.X) else "cpu"
        self.paths = mapped_files(self.X)
        self.weights = checks.weights(sample_weight, self.n_samples)
        self.chunk_rows = chunk_rows
        self.skip_bad_rows = skip_bad_rows
        self._finite: set[Chunk] = set()
        if self.weights is not None and not self.weights.any():
            raise InputError("sample_weight must have a positive sum, got zeros only.")

    def chunks(self) -> list[Chunk]:
        on_device = 1 if self.device == "cpu" else 64  # a device wants fewer, larger products
        rows = self.chunk_rows or on_device * default_rows(self.n_features)
        return even_chunks(self.n_samples, rows)

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        part = slice(chunk.first_row, chunk.first_row + chunk.n_rows)
        rows = linalg.native(self.X[part])
        batch = Batch(chunk.first_row, rows, None if self.weights is None else self.weights[part])
        if self.skip_bad_rows:
            batch = finite_only(batch)
        elif chunk not in self._finite:  # once is enough for rows that stay in memory
            checks.finite(rows, chunk.first_row)
            self._finite.add(chunk)
        yield batch

    def identity(self) -> dict[str, Any]:
        """Plain values that identify these rows by the bytes of at most 1,000 of them."""
        picked = np.linspace(0, self.n_samples - 1, min(self.n_samples, 1000)).astype(np.int64)
        rows = self.X[linalg.index(picked, self.X)]
        sample = np.ascontiguousarray(linalg.to_numpy(linalg.native(rows)))
        return {
            "kind": "array",
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "dtype": self.dtype,
            "checksum": zlib.crc32(sample.tobytes()),
            "chunk_rows": self.chunk_rows,
            "skip_bad_rows": self.skip_bad_rows,
            "weights": None if self.weights is None else zlib.crc32(self.weights.tobytes()),
        }


def mapped_files(X: Any) -> tuple[str, ...]:
    """The files that an array is mapped from, if any."""
    found = []
    while X is not None:
        if isinstance(name := getattr(X, "filename", None), (str, os.PathLike)):
            found.append(os.fspath(name))
        X = getattr(X, "base", None)
    return tuple(found)


class MappedSource(SourceView):
    """The rows of another source after `transform`, chunk by chunk.

    Parameters
    ----------
    source : Source
    transform : callable
        Takes and returns rows. It must keep their number; their width may change.
    n_features : int
        Width of the transformed rows.
    """

    def __init__(
        self, source: Source, transform: Callable[[Array], Array], n_features: int
    ) -> None:
        super().__init__(source)
        self.transform, self.n_features = transform, n_features

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.source.read(chunk):
            yield replace(batch, rows=self.transform(batch.rows)) if len(batch.rows) else batch


CHUNK_ELEMENTS = 1 << 22  # 16 MB of float32


class PickedRows(Source):
    """The rows of an array with these row numbers, in this order, repeats included.

    Parameters
    ----------
    X : array of shape (n_rows, n_features)
        Finite.
    numbers : array of int
    """

    def __init__(self, X: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        self.X, self.numbers = X, numbers
        self.n_samples, self.n_features = len(numbers), int(X.shape[1])

    def chunks(self) -> list[Chunk]:
        return even_chunks(self.n_samples, max(1, CHUNK_ELEMENTS // self.n_features))

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        numbers = self.numbers[chunk.first_row : chunk.first_row + chunk.n_rows]
        yield Batch(chunk.first_row, linalg.native(self.X[numbers]))


class Excerpt(SourceView):
    """About `n_rows` rows of a source in evenly spaced chunks, or all rows if there are fewer.

    This makes it possible to judge a large file without reading all of it: at least four chunks
    are started, and each is read only as far as its share of the rows.
    """

    def __init__(self, source: Source, n_rows: int = 10_000) -> None:
        super().__init__(source.bare())
        chunks = source.chunks()
        n_chunks = min(len(chunks), max(4, -(-n_rows * len(chunks) // source.n_samples)))
        picked = np.linspace(0, len(chunks) - 1, n_chunks).round().astype(int)
        self._chunks = [chunks[i] for i in picked]
        self._rows_each = -(-n_rows // n_chunks)
        self.n_samples = sum(min(chunk.n_rows, self._rows_each) for chunk in self._chunks)

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
    """The first rows of a batch."""
    return replace(
        batch,
        rows=batch.rows[:n_rows],
        weights=None if batch.weights is None else batch.weights[:n_rows],
        numbers=None if batch.numbers is None else batch.numbers[:n_rows],
    )

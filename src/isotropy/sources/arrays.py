"""Vectors in memory: numpy arrays and torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources.base import CHUNK_BYTES, Batch, Chunk, Source


class ArraySource:
    """The rows of an array or tensor, never copied as a whole.

    Parameters
    ----------
    X : array or tensor of shape (n_samples, n_features)
    sample_weight : array of shape (n_samples,), optional
    caller : str
        Name that error messages begin with.
    """

    def __init__(self, X: Array, sample_weight: object = None, caller: str = "isotropy") -> None:
        self.X = checks.matrix(X, caller)
        self.weights = checks.weights(sample_weight, self.X.shape[0], caller)
        self.caller = caller
        if self.weights is not None and not self.weights.any():
            raise InputError(f"{caller}: sample_weight must have a positive sum, got zeros only.")

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def device(self) -> str:
        return str(self.X.device) if checks.is_tensor(self.X) else "cpu"

    def chunks(self) -> list[Chunk]:
        rows = max(1, CHUNK_BYTES // (4 * self.n_features))
        return [
            Chunk(start, min(rows, self.n_samples - start))
            for start in range(0, self.n_samples, rows)
        ]

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        part = slice(chunk.first_row, chunk.first_row + chunk.n_rows)
        rows = linalg.native(self.X[part])
        checks.finite(rows, self.caller, chunk.first_row)
        yield Batch(chunk.first_row, rows, None if self.weights is None else self.weights[part])


class MappedSource:
    """Another source's rows after `transform`, chunk by chunk.

    Parameters
    ----------
    source : Source
    transform : callable
        Takes and returns rows; the number of rows must stay, their width may change.
    n_features : int
        Width of the transformed rows.
    """

    def __init__(
        self, source: Source, transform: Callable[[Array], Array], n_features: int
    ) -> None:
        self.source = source
        self.transform = transform
        self.n_features = n_features

    @property
    def n_samples(self) -> int:
        return self.source.n_samples

    @property
    def device(self) -> str:
        return self.source.device

    def chunks(self) -> list[Chunk]:
        return self.source.chunks()

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.source.read(chunk):
            yield replace(batch, rows=self.transform(batch.rows))


def as_source(X: Any, sample_weight: object = None, caller: str = "isotropy") -> Source:
    """X itself where it is a source, otherwise the source of its rows."""
    if not hasattr(X, "chunks") or not hasattr(X, "read"):
        return ArraySource(X, sample_weight, caller)
    if sample_weight is not None:
        raise InputError(f"{caller}: sample_weight must be given to the source, not beside it.")
    source: Source = X
    return source

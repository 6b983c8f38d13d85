"""The base class of every source of vectors, and the chunks and batches it is read in."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.checks import Array

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 26


def default_rows(n_features: int) -> int:
    """The default number of rows in a chunk: CHUNK_BYTES of float32."""
    return max(1, CHUNK_BYTES // (4 * n_features))


@dataclass(frozen=True)
class Chunk:
    """`n_rows` rows of a source, starting at row `first_row`.

    `file` and `place` tell a file source where to find them. Both are plain values, so a chunk can
    be read on another machine.
    """

    first_row: int
    n_rows: int
    file: str = ""
    place: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Rows in float32 or float64, starting at row `first_row` of the source.

    `carried` holds the other columns of the same rows, if the source has any. `n_skipped` is the
    number of bad rows that were left out; if there are any, `numbers` are the row numbers of those
    that are left.
    """

    first_row: int
    rows: Array
    weights: NDArray[Any] | None = None
    carried: pa.Table | None = None
    n_skipped: int = 0
    numbers: NDArray[np.int64] | None = None


def finite_only(batch: Batch) -> Batch:
    """The batch without its bad rows: those with NaN or infinity."""
    good = checks.finite_rows(batch.rows)
    if good is None:
        return batch
    return Batch(
        batch.first_row,
        batch.rows[good],
        None if batch.weights is None else batch.weights[good],
        None if batch.carried is None else batch.carried.filter(good),
        int(len(good) - good.sum()),
        batch.first_row + np.flatnonzero(good),
    )


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: NDArray[Any]) -> NDArray[np.uint16]:
    """float32 values as bfloat16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Source(ABC):
    """Rows of vectors, in chunks that can be read, and read again.

    A subclass sets `n_samples` and `n_features` and defines `chunks` and `read`; everything else
    has a default. Several threads call `read` at the same time, and a source that is read by the
    workers of a cluster must pickle.

    Attributes
    ----------
    n_samples : int
        Number of rows, including bad rows that `read` leaves out.
    n_features : int
    dtype : str
        Name of the dtype in which the rows are stored, such as "float16". Rows that are written
        to a file keep it.
    device : str
        Where `read` puts the rows: "cpu" or a torch device.
    column : str or None
        Name of the column of vectors, which Parquet files keep.
    words : mapping or None
        The row number of each word or text, if the rows have keys.
    paths : tuple of str
        The files that are read. No output may replace them.
    """

    n_samples: int
    n_features: int
    dtype: str = "float32"
    device: str = "cpu"
    column: str | None = None
    words: Mapping[Any, int] | None = None
    paths: tuple[str, ...] = ()

    @abstractmethod
    def chunks(self) -> list[Chunk]:
        """All chunks, in the order of their rows."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """The rows of a chunk in order, in one or more batches of bounded size, all finite."""

    def bare(self) -> Source:
        """The same rows without other columns, for work that doesn't need them."""
        return self

    def identity(self) -> dict[str, Any] | None:
        """Plain values that identify these rows; None if there are none.

        A checkpoint resumes only if they are unchanged, and is refused if they are None.
        """
        return None


class SourceView(Source):
    """The rows of another source, seen differently: a subclass overrides what it changes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.n_samples, self.n_features = source.n_samples, source.n_features
        self.dtype, self.device = source.dtype, source.device
        self.column, self.paths = source.column, source.paths

    def chunks(self) -> list[Chunk]:
        return self.source.chunks()

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        return self.source.read(chunk)

    def bare(self) -> Self:
        view = copy.copy(self)
        view.source = self.source.bare()
        return view


def even_chunks(n_samples: int, n_rows: int) -> list[Chunk]:
    """Chunks of `n_rows` rows, the last one shorter."""
    starts = range(0, n_samples, n_rows)
    return [Chunk(start, min(n_rows, n_samples - start)) for start in starts]

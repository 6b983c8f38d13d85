"""Sources of vectors: their base class, the chunks they are read in, and vectors in memory."""

from __future__ import annotations

import copy
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 26
LEAST_ELEMENTS = 1 << 21  # of a chunk of rows that are read by number
N_CHUNKS = 32  # or a multiple of it, so that runs of chunks are of equal size
COARSE = 32  # times the default number of rows, for rows in memory that are not copied
MOST_COARSE = 1 << 23  # rows of narrow chunks: labels take memory, and exact products stay exact
Room = Callable[[tuple[int, int], str], NDArray[Any]]  # memory for rows of a shape and dtype
PICKED_ELEMENTS = 1 << 23  # of a chunk of picked rows: 32 MB of float32


def default_rows(n_features: int) -> int:
    """The default number of rows in a chunk: CHUNK_BYTES of float32."""
    return max(1, CHUNK_BYTES // (4 * n_features))


def balanced_rows(n_samples: int, n_features: int) -> int:
    """The number of rows in each of a multiple of 32 chunks, or in fewer that are small."""
    n_chunks = -(-n_samples // (N_CHUNKS * default_rows(n_features))) * N_CHUNKS
    return max(-(-n_samples // max(n_chunks, 1)), LEAST_ELEMENTS // n_features, 1)


@dataclass(frozen=True)
class Chunk:
    """`n_rows` rows of a source from `first_row` on, as plain values that can be sent.

    `file` and `place` tell a file source where to find them.
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
    that are left. `checksum` is that of all rows as they were read, if only it can tell whether
    they have changed since.
    """

    first_row: int
    rows: Array
    weights: NDArray[Any] | None = None
    carried: pa.Table | None = None
    n_skipped: int = 0
    numbers: NDArray[np.int64] | None = None
    checksum: int = 0

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """The number of every row."""
        if self.numbers is not None:
            return self.numbers
        return self.first_row + np.arange(self.rows.shape[0])


def finite_only(batch: Batch) -> Batch:
    """The batch without its bad rows: those with NaN or infinity."""
    good = checks.finite_rows(batch.rows)
    if good is None:
        return batch
    return Batch(
        batch.first_row,
        batch.rows[linalg.index(np.flatnonzero(good), batch.rows)],
        None if batch.weights is None else batch.weights[good],
        None if batch.carried is None else batch.carried.filter(good),
        batch.n_skipped + int(len(good) - good.sum()),
        batch.row_numbers[good],
        batch.checksum,
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of one source as one, without their other columns."""
    first, *others = batches
    if not others:
        return first
    rows = linalg.namespace(first.rows).concat([batch.rows for batch in batches])
    weights = None
    if first.weights is not None:
        weights = np.concatenate([batch.weights for batch in batches])
    numbers = np.concatenate([batch.row_numbers for batch in batches])
    in_a_row = np.array_equal(numbers, first.first_row + np.arange(len(numbers)))
    n_skipped = sum(batch.n_skipped for batch in batches)
    return Batch(first.first_row, rows, weights, None, n_skipped, None if in_a_row else numbers)


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

    def raw(self, chunk: Chunk, room: Room | None = None) -> Iterator[Batch]:
        """What `read` yields, but with rows as stored, in memory that `room(shape, dtype)` gives.

        A source that cannot do so reads as usual. `checked` does the checks that it leaves out.
        """
        return self.read(chunk)

    def checked(self, chunk: Chunk, batch: Batch) -> Batch:
        """A batch that `raw` yielded for a chunk, in float32 or float64, without bad rows."""
        return batch

    def split(self, chunk: Chunk, n_bytes: int) -> list[Chunk]:
        """The chunk in parts of about `n_bytes`, if any rows can be read by themselves."""
        return [chunk]

    def bare(self) -> Source:
        """The same rows without other columns, for work that doesn't need them."""
        return self

    def coarse(self) -> Source:
        """The same rows, in larger chunks if that costs nothing."""
        return self

    def origin(self) -> dict[str, Any]:
        """How the rows were made, as fields of `repairs.Origin`; empty if nothing is known."""
        return {}

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

    def origin(self) -> dict[str, Any]:
        return self.source.origin()

    def bare(self) -> Self:
        view = copy.copy(self)
        view.source = self.source.bare()
        return view


def source_weights(sample_weight: object, n_samples: int) -> NDArray[Any] | None:
    """The weights of all rows of a source, of which one must be above zero; None if none given."""
    weights = checks.weights(sample_weight, n_samples)
    if weights is not None and not weights.any():
        raise InputError("sample_weight must have a positive sum, got zeros only.")
    return weights


def even_chunks(n_samples: int, n_rows: int) -> list[Chunk]:
    """Chunks of `n_rows` rows, the last one shorter."""
    starts = range(0, n_samples, n_rows)
    return [Chunk(start, min(n_rows, n_samples - start)) for start in starts]


class ArraySource(Source):
    """The rows of an array or tensor, which is never copied as a whole; see `isotropy.open`."""

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
        self.weights = source_weights(sample_weight, self.n_samples)
        self.chunk_rows, self.skip_bad_rows = chunk_rows, skip_bad_rows
        self._finite: set[Chunk] = set()

    def chunks(self) -> list[Chunk]:
        if self.device == "cpu":
            rows = balanced_rows(self.n_samples, self.n_features)
        else:  # a device wants fewer, larger products
            rows = 64 * default_rows(self.n_features)
        return even_chunks(self.n_samples, self.chunk_rows or rows)

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

    def coarse(self) -> ArraySource:
        weightless = self.weights is not None and not self.weights.all()
        if self.dtype not in ("float32", "float64") or self.skip_bad_rows or weightless:
            return self  # whose chunks are copied
        found, usual = copy.copy(self), default_rows(self.n_features)
        many = max(usual, min(COARSE * usual, MOST_COARSE))
        n_chunks = -(-self.n_samples // many) if self.device == "cpu" else 1
        found.chunk_rows = self.chunk_rows or -(-self.n_samples // n_chunks)
        all_seen = self._finite.issuperset(self.chunks())
        found._finite = set(found.chunks()) if all_seen else set()
        return found

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


@dataclass(frozen=True)
class RowMap:
    """What is done to the rows of a stream: `function(batch)`, to another width.

    Vectors in columns of their own are in those of `names` if their number changes. `seen(rows,
    n_skipped)` is told about all rows, and how many bad ones were left out.
    """

    function: Callable[[Batch], Array]
    n_features: int
    n_features_out: int
    names: Sequence[str] = ()
    skip_bad_rows: bool = False
    seen: Callable[[Array, int], object] = lambda rows, n_skipped: None


class MappedSource(SourceView):
    """The rows of another source after `transform`, which makes them `n_features` wide.

    The number of rows must stay the same.
    """

    def __init__(
        self, source: Source, transform: Callable[[Array], Array], n_features: int
    ) -> None:
        super().__init__(source)
        self.transform, self.n_features = transform, n_features

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.source.read(chunk):
            yield replace(batch, rows=self.transform(batch.rows)) if len(batch.rows) else batch

    def origin(self) -> dict[str, Any]:
        return {}  # the rows are no longer those that were made so


class PickedRows(Source):
    """The rows of a finite array with these row numbers, in this order, repeats included."""

    def __init__(self, X: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        self.X, self.numbers = X, numbers
        self.n_samples, self.n_features = len(numbers), int(X.shape[1])

    def chunks(self) -> list[Chunk]:
        return even_chunks(self.n_samples, max(1, PICKED_ELEMENTS // self.n_features))

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        numbers = self.numbers[chunk.first_row : chunk.first_row + chunk.n_rows]
        yield Batch(chunk.first_row, linalg.native(self.X[numbers]))


class Excerpt(SourceView):
    """About `n_rows` rows of a source in evenly spaced chunks, or all rows if there are fewer.

    This makes it possible to judge a large file without reading all of it: at least four chunks
    are started, and each is read only as far as its share of the rows. Other columns come along
    with `carry`.
    """

    def __init__(self, source: Source, n_rows: int = 10_000, *, carry: bool = False) -> None:
        super().__init__(source if carry else source.bare())
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
            yield replace(
                batch,
                rows=batch.rows[:n_left],
                weights=None if batch.weights is None else batch.weights[:n_left],
                carried=None if batch.carried is None else batch.carried[:n_left],
                numbers=None if batch.numbers is None else batch.numbers[:n_left],
            )
            n_left -= batch.rows.shape[0]
            if n_left <= 0:
                return

"""What every source of vectors promises: chunks of rows that can be read, and read again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isotropy.checks import Array

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 26


def default_rows(n_features: int) -> int:
    """Rows of a chunk where nobody asked for a number: CHUNK_BYTES of float32."""
    return max(1, CHUNK_BYTES // (4 * n_features))


@dataclass(frozen=True)
class Chunk:
    """`n_rows` rows of a source from global row number `first_row` on.

    `file` and `place` say where a file source finds them; both are plain values, so that a chunk
    can be read on another machine.
    """

    first_row: int
    n_rows: int
    file: str = ""
    place: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Rows in float32 or float64, with the global number of the first one.

    `carried` holds the other columns of the same rows, where the source has any. `n_skipped` is
    the number of bad rows that were left out; where all were, `rows` has none, and where some
    were, `numbers` are the global numbers of the others.
    """

    first_row: int
    rows: Array
    weights: NDArray[Any] | None = None
    carried: pa.Table | None = None
    n_skipped: int = 0
    numbers: NDArray[np.int64] | None = None


def keep(batch: Batch, good: NDArray[np.bool_]) -> Batch:
    """The batch with its good rows only."""
    n_skipped = int(len(good) - good.sum())
    if not n_skipped:
        return batch
    return Batch(
        batch.first_row,
        batch.rows[good],
        None if batch.weights is None else batch.weights[good],
        None if batch.carried is None else batch.carried.filter(good),
        n_skipped,
        batch.first_row + np.flatnonzero(good),
    )


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: NDArray[Any]) -> NDArray[np.uint16]:
    """float32 values as bfloat16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Source(Protocol):
    """Rows of `n_features` numbers, in chunks that the source alone defines."""

    @property
    def n_features(self) -> int: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def device(self) -> str:
        """Where the rows lie: "cpu", or a torch device."""
        ...

    def chunks(self) -> list[Chunk]:
        """All chunks, in the order of their rows."""
        ...

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """The rows of a chunk in order, in one or more batches of bounded size, all finite."""
        ...

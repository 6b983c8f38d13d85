"""Some rows of an array, as a source that never copies more of them than a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.sources.base import Batch, Chunk

CHUNK_ELEMENTS = 1 << 22  # 16 MB of float32


class PickedRows:
    """The rows of an array with these numbers, in this order, as often as each is named.

    Parameters
    ----------
    X : array of shape (n_rows, n_features)
        Finite.
    numbers : array of int
    """

    device = "cpu"

    def __init__(self, X: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        self.X, self.numbers = X, numbers

    @property
    def n_samples(self) -> int:
        return len(self.numbers)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    def chunks(self) -> list[Chunk]:
        rows = max(1, CHUNK_ELEMENTS // self.n_features)
        return [
            Chunk(start, min(rows, self.n_samples - start))
            for start in range(0, self.n_samples, rows)
        ]

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        numbers = self.numbers[chunk.first_row : chunk.first_row + chunk.n_rows]
        yield Batch(chunk.first_row, linalg.native(self.X[numbers]))

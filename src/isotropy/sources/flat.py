"""Rows of equal size that lie in a file one after the other: read by offset, never mapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import brief
from isotropy.sources import paths
from isotropy.sources.files import TRUNCATED, File, FormatError, Rows


@dataclass(frozen=True, kw_only=True)
class FlatFile(File):
    """n_rows x n_features values from `offset` on.

    `stored` is numpy's code of a value ("<f4"), with bfloat16 as "<u2"; `fortran` has whole
    columns one after the other, and `prefix` puts a 4-byte width before each row.
    """

    kind: ClassVar[str] = "binary"
    offset: int
    stored: str
    fortran: bool = False
    prefix: bool = False

    def read(
        self, first_row: int, n_rows: int, place: tuple[int, ...], carry: bool
    ) -> Iterator[tuple[Rows, None]]:
        with paths.open_binary(self.path) as file:
            if self.fortran:
                rows = self._columns(file, first_row, n_rows)
            else:
                rows = np.empty(n_rows, self.row_dtype)
                fill(file, self.offset + first_row * self.row_dtype.itemsize, rows)
        if self.prefix:
            wrong = np.flatnonzero(rows["width"] != self.n_features)
            if len(wrong):
                raise FormatError(
                    f"has {rows['width'][wrong[0]]} features in row {first_row + wrong[0]}, but "
                    f"{self.n_features} in the first. Write rows of one width."
                )
        if not self.fortran:
            rows = np.ascontiguousarray(rows["values"])
        yield widened(rows) if self.dtype == "bfloat16" else rows, None

    @property
    def row_dtype(self) -> np.dtype[Any]:
        values = ("values", self.stored, (self.n_features,))
        return np.dtype([("width", "<i4"), values] if self.prefix else [values])

    def _columns(self, file: IO[bytes], first_row: int, n_rows: int) -> Rows:
        rows = np.empty((self.n_features, n_rows), self.stored)
        for j, column in enumerate(rows):
            value = j * self.n_rows + first_row
            fill(file, self.offset + value * rows.dtype.itemsize, column)
        return np.ascontiguousarray(rows.T)


def expect_bytes(found: int, promised: int) -> None:
    """Raise unless there are as many bytes of values as the header promises."""
    if found < promised:
        raise FormatError(
            f"is truncated: it has {found} bytes of values, and its header promises "
            f"{brief(promised)}. Write or copy it again."
        )
    if found > promised:
        raise FormatError(
            f"has {found} bytes of values, and its header promises {promised}. Write it again, "
            "with one array."
        )


def fill(file: IO[bytes], offset: int, array: NDArray[Any]) -> None:
    """Read a contiguous array's bytes from offset on."""
    view = array.reshape(-1).view(np.uint8).data
    file.seek(offset)
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise FormatError(TRUNCATED)
        view = view[count:]


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: NDArray[Any]) -> NDArray[np.uint16]:
    """float32 values as bfloat16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

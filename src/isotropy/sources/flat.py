"""Rows of equal size, one after another: safetensors, and the .fvecs family of TEXMEX."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isotropy import stored
from isotropy.errors import InputError, brief, one_line
from isotropy.sources import paths
from isotropy.sources.base import widened
from isotropy.sources.files import (
    TRUNCATED,
    Column,
    File,
    FormatError,
    Matrix,
    Pieces,
    Place,
    listed,
)
from isotropy.sources.sinks import Sink
from isotropy.stored import TensorEntry


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

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
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

    def _columns(self, file: IO[bytes], first_row: int, n_rows: int) -> Matrix:
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


STORED = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}


class FvecsFile(FlatFile):
    kind = ".fvecs"


def open_fvecs(path: str, column: Column, chunk_rows: int | None) -> File:
    code = np.dtype(STORED[path[path.rindex(".") :].lower()])
    size, _ = paths.status(path)
    n_features = int.from_bytes(paths.read_bytes(path, 0, 4), "little")
    row = 4 + n_features * code.itemsize
    if not n_features or size % row:
        raise FormatError(
            f"is truncated or not a .fvecs file: rows of {n_features} values do not fit its {size} "
            "bytes. Write or copy it again."
        )
    return FvecsFile(
        path=path,
        n_rows=size // row,
        n_features=n_features,
        dtype=code.name,
        chunk_rows=chunk_rows,
        offset=0,
        stored=code.str,
        prefix=True,
    )


class SafetensorsFile(FlatFile):
    kind = "safetensors"


def open_safetensors(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file:
        try:
            found = stored.Safetensors(file, paths.status(path)[0])
        except InputError as error:
            raise FormatError(
                f"is damaged or not a safetensors file: {error}. Write or copy it again."
            ) from error
    name = choose(found.entries, column)
    entry = found.entries[name]
    if entry.dtype not in stored.DTYPES or entry.dtype == "BOOL":
        numbers = [code for code in stored.DTYPES if code != "BOOL"]
        raise FormatError(
            f"holds {brief(name)} in {one_line(entry.dtype, 40)}. Save it in one of "
            f"{listed(numbers)}."
        )
    code = stored.DTYPES[entry.dtype]
    n_rows, n_features = entry.shape
    return SafetensorsFile(
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype="bfloat16" if entry.dtype == "BF16" else np.dtype(code).name,
        column=name,
        chunk_rows=chunk_rows,
        offset=found.start + entry.begin,
        stored=code,
    )


def choose(tensors: dict[str, TensorEntry], column: Column) -> str:
    """The tensor that column names, by default the only matrix."""
    shapes = [(name, tensor.shape) for name, tensor in tensors.items()]
    there = listed(shapes, word=lambda item: f"{brief(item[0])} {brief(item[1])}")
    if column is None:
        matrices = [name for name, tensor in tensors.items() if len(tensor.shape) == 2]
        if len(matrices) != 1:
            raise FormatError(
                f"holds {len(matrices)} matrices among {there}. Choose a tensor with column."
            )
        return matrices[0]
    name = str(column)
    if name not in tensors:
        raise FormatError(f"has no tensor {brief(name)}, only {there}. Choose one with column.")
    if len(tensors[name].shape) != 2:
        raise FormatError(f"holds {brief(name)} without two dimensions: {there}. Choose another.")
    return name


class SafetensorsSink(Sink):
    """One tensor, "embeddings"; the header has a fixed size and is written last."""

    holds_bfloat16 = True
    HEADER = 192
    CODES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}

    def _begin(self) -> None:
        self.file.write(b" " * (8 + self.HEADER))

    def _finish(self) -> None:
        n_bytes = self.file.tell() - 8 - self.HEADER
        entry = {
            "dtype": self.CODES[self.dtype],
            "shape": [self.n_rows, self.n_features],
            "data_offsets": [0, n_bytes],
        }
        text = json.dumps({"embeddings": entry}).encode().ljust(self.HEADER)
        self.file.seek(0)
        self.file.write(self.HEADER.to_bytes(8, "little") + text)

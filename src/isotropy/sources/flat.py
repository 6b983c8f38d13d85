"""Rows of equal size, one after the other: safetensors, and TEXMEX's .fvecs family."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import brief, one_line
from isotropy.sources import paths
from isotropy.sources.base import widened
from isotropy.sources.files import TRUNCATED, Column, File, FormatError, Rows, listed, parsed
from isotropy.sources.sinks import Sink


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


STORED = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}


class FvecsFile(FlatFile):
    kind = ".fvecs"


def open_fvecs(path: str, column: Column, chunk_rows: int | None) -> File:
    stored = np.dtype(STORED[path[path.rindex(".") :].lower()])
    size, _ = paths.status(path)
    n_features = int.from_bytes(paths.read_bytes(path, 0, 4), "little")
    row = 4 + n_features * stored.itemsize
    if not n_features or size % row:
        raise FormatError(
            f"is truncated or not a .fvecs file: rows of {n_features} values do not fit its {size} "
            "bytes. Write or copy it again."
        )
    return FvecsFile(
        path=path,
        n_rows=size // row,
        n_features=n_features,
        dtype=stored.name,
        chunk_rows=chunk_rows,
        offset=0,
        stored=stored.str,
        prefix=True,
    )


DTYPES = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
    "I16": ("int16", "<i2"),
    "I8": ("int8", "|i1"),
    "U64": ("uint64", "<u8"),
    "U32": ("uint32", "<u4"),
    "U16": ("uint16", "<u2"),
    "U8": ("uint8", "|u1"),
}


HEADER_BYTES = 100_000_000  # the format's own limit
LARGEST = 1 << 62


class SafetensorsFile(FlatFile):
    kind = "safetensors"


@dataclass(frozen=True)
class Tensor:
    """One entry of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def open_safetensors(path: str, column: Column, chunk_rows: int | None) -> File:
    tensors, start = read_header(path)
    name = choose(tensors, column)
    tensor = tensors[name]
    if tensor.dtype not in DTYPES:
        raise FormatError(
            f"holds {brief(name)} in {one_line(tensor.dtype, 40)}. Save it in one of "
            f"{listed(list(DTYPES))}."
        )
    dtype, stored = DTYPES[tensor.dtype]
    n_rows, n_features = tensor.shape
    return SafetensorsFile(
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=dtype,
        column=name,
        chunk_rows=chunk_rows,
        offset=start + tensor.begin,
        stored=stored,
    )


def read_header(path: str) -> tuple[dict[str, Tensor], int]:
    """(entry of each tensor, offset of the first byte after the header), as the format has it.

    Together the tensors take up all bytes after the header, and none of them twice.
    """
    size, _ = paths.status(path)
    length = int.from_bytes(paths.read_bytes(path, 0, 8), "little")
    if length > min(size - 8, HEADER_BYTES):
        raise FormatError(
            f"is truncated or not a safetensors file: a header of {length} bytes does not fit its "
            f"{size}. Write or copy it again."
        )
    text = paths.read_bytes(path, 8, length)
    header = parsed(text, "a header")
    if not isinstance(header, dict) or not text.startswith(b"{"):
        raise FormatError("has a header that is not a JSON object. Write or copy it again.")
    metadata = header.pop("__metadata__", None) or {}
    if not (isinstance(metadata, dict) and all(isinstance(x, str) for x in metadata.values())):
        raise FormatError("has __metadata__ that is not of texts. Write or copy it again.")
    tensors = {name: _tensor(name, entry) for name, entry in header.items()}
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            raise FormatError(
                f"is damaged: {brief(name)} begins at byte {tensor.begin}, where those before it "
                f"end at {at}. Write or copy it again."
            )
        at = tensor.end
    expect_bytes(size - 8 - length, at)
    return tensors, 8 + length


def _tensor(name: str, entry: Any) -> Tensor:
    """An entry, which must be whole: a text, and lists of whole numbers."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    values: Any = [fields.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, place = values
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(place) or len(place) != 2:
        raise FormatError(
            f"is damaged: its header has no dtype, shape and place for {brief(name)}, or not as "
            "whole numbers. Write or copy it again."
        )
    begin, end = place
    itemsize = np.dtype(DTYPES[dtype][1]).itemsize if dtype in DTYPES else 0
    if end < begin or (itemsize and end - begin != math.prod(shape) * itemsize):
        raise FormatError(
            f"is damaged: the size of {brief(name)} does not fit its shape. Copy it again."
        )
    return Tensor(dtype, tuple(shape), begin, end)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < LARGEST for x in value)


def choose(tensors: dict[str, Tensor], column: Column) -> str:
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

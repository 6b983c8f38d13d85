"""GGUF files: the token vectors of a model, or another of its matrices.

Only the header is parsed, here, since its counts are the file's own claims. Rows are read by offset
and dequantized by the package gguf, which float32, float16, bfloat16 and float64 don't need.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from isotropy.errors import brief, needs
from isotropy.sources import paths
from isotropy.sources.base import widened
from isotropy.sources.files import TRUNCATED, Column, File, FormatError, Pieces, Place, listed
from isotropy.sources.flat import choose

TOKENS = "token_embd.weight"
PLAIN = {0: "<f4", 1: "<f2", 28: "<f8", 30: "<u2"}  # numpy's code of a type; 30 is bfloat16
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a type
UINT32, STRING, ARRAY = 4, 8, 9
LONGEST = 1 << 16  # bytes of a name
MOST_DIMENSIONS = 4
ALIGNMENT = b"general.alignment"


@dataclass(frozen=True, kw_only=True)
class GgufFile(File):
    """The rows of one tensor of type `stored` from `offset` on, of `row_bytes` each."""

    kind: str = "GGUF"
    offset: int
    stored: int
    row_bytes: int

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        start = self.offset + first_row * self.row_bytes
        data = paths.read_bytes(self.path, start, n_rows * self.row_bytes)
        if len(data) < n_rows * self.row_bytes:
            raise FormatError(TRUNCATED)
        if self.stored in PLAIN:
            rows = np.frombuffer(data, PLAIN[self.stored]).reshape(n_rows, self.n_features)
            yield widened(rows) if self.dtype == "bfloat16" else rows, None
            return
        with needs("gguf", "models"):
            import gguf
        blocks = np.frombuffer(data, np.uint8).reshape(n_rows, self.row_bytes)
        with np.errstate(all="ignore"):  # damaged scales give infinity, which is refused
            yield gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(self.stored)), None


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]  # rows first
    stored: int
    offset: int


def open_gguf(path: str, column: Column, chunk_rows: int | None) -> File:
    size, *_ = paths.stamp(path)
    with paths.open_binary(path) as file:
        tensors, start = Header(file, size).read()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    there = listed(list(shapes.items()), 5, lambda item: f"{brief(item[0])} {brief(item[1])}")
    name = choose(
        shapes, TOKENS if column is None and TOKENS in shapes else column, "tensor", there
    )
    tensor = tensors[name]
    if len(tensor.shape) != 2:
        raise FormatError(f"holds {brief(name)} without two dimensions: {there}. Choose another.")
    n_rows, n_features = tensor.shape
    row_bytes, dtype = _row(tensor.stored, n_features, name)
    offset = start + tensor.offset
    if offset + n_rows * row_bytes > size:
        raise FormatError(
            f"is truncated: it ends before {brief(name)} does. Write or copy it again."
        )
    return GgufFile(
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=dtype,
        column=name,
        chunk_rows=chunk_rows,
        offset=offset,
        stored=tensor.stored,
        row_bytes=row_bytes,
    )


def _row(stored: int, n_features: int, name: str) -> tuple[int, str]:
    """(bytes of a row, name of its dtype)."""
    if stored in PLAIN:
        code = np.dtype(PLAIN[stored])
        return n_features * code.itemsize, "bfloat16" if stored == 30 else code.name
    with needs("gguf", "models"):
        import gguf
    try:
        kind = gguf.GGMLQuantizationType(stored)
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        gguf.quants.dequantize(np.zeros((1, n_bytes), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise FormatError(
            f"holds {brief(name)} in a type (number {stored}) that can't be read. Convert it to "
            "F32, F16 or Q8_0."
        ) from error
    if n_features % block:
        raise FormatError(
            f"is damaged: rows of {n_features} values don't fill blocks of {block}. Copy it again."
        )
    return n_features // block * n_bytes, "float32"


class Header:
    """Reads the header of a file of `size` bytes, and nothing beyond its end."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self.alignment = file, size, 32

    def read(self) -> tuple[dict[str, Tensor], int]:
        """(tensors by name, offset of the first value)."""
        if self._bytes(4) != b"GGUF":
            raise FormatError("is not a GGUF file: it does not begin as one. Copy it again.")
        version = self._number("<I")
        if version not in (2, 3):
            raise FormatError(f"is of GGUF version {version}, and only 2 and 3 are read.")
        n_tensors, n_values = self._number("<Q"), self._number("<Q")
        for _ in range(n_values):
            key = self._bytes(self._number("<Q"))
            self._pass_over(key, self._number("<I"))
        tensors: dict[str, Tensor] = {}
        for _ in range(n_tensors):
            name = self._bytes(self._number("<Q")).decode()
            if name in tensors:
                raise FormatError(f"holds {brief(name)} twice. Write it again.")
            tensors[name] = self._tensor()
        return tensors, -(-self.file.tell() // self.alignment) * self.alignment

    def _tensor(self) -> Tensor:
        n_dimensions = self._number("<I")
        if n_dimensions > MOST_DIMENSIONS:
            raise FormatError(f"is damaged: a tensor has {n_dimensions} dimensions. Copy it again.")
        shape = [self._number("<Q") for _ in range(n_dimensions)]  # the fastest first
        return Tensor(tuple(reversed(shape)), self._number("<I"), self._number("<Q"))

    def _pass_over(self, key: bytes, kind: int) -> None:
        """Go on after a value, which is only looked at if it is the alignment."""
        if kind == ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            if inner == STRING:
                for _ in range(count):
                    self._skip(self._number("<Q"))
            else:
                self._skip(count * self._n_bytes(inner))
        elif kind == STRING:
            self._skip(self._number("<Q"))
        elif key == ALIGNMENT and kind == UINT32:
            self.alignment = self._number("<I")
            if not self.alignment or self.alignment & (self.alignment - 1):
                raise FormatError(f"is damaged: it aligns to {self.alignment}. Copy it again.")
        else:
            self._skip(self._n_bytes(kind))

    def _n_bytes(self, kind: int) -> int:
        if kind not in SCALARS:
            raise FormatError(f"is damaged: it has a value of type {kind}. Copy it again.")
        return SCALARS[kind]

    def _skip(self, n_bytes: int) -> None:
        place = self.file.tell() + n_bytes
        if place > self.size:
            raise FormatError(TRUNCATED)
        self.file.seek(place)

    def _number(self, code: str) -> Any:
        (found,) = struct.unpack(code, self._bytes(struct.calcsize(code)))
        return found

    def _bytes(self, n_bytes: int) -> bytes:
        data = self.file.read(n_bytes) if n_bytes <= LONGEST else b""
        if len(data) < n_bytes:
            raise FormatError(TRUNCATED)
        return data

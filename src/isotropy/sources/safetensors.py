"""safetensors: a JSON header with the place of each tensor, then their bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError, listed
from isotropy.sources.flat import FlatFile, expect_size
from isotropy.sources.sinks import Sink

DTYPES = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
    "I16": ("int16", "<i2"),
    "I8": ("int8", "|i1"),
    "U8": ("uint8", "|u1"),
}


class SafetensorsFile(FlatFile):
    kind = "safetensors"


def open_safetensors(path: str, column: Column, chunk_rows: int | None) -> File:
    tensors, start = read_header(path)
    name = choose(tensors, column)
    entry = tensors[name]
    n_rows, n_features = entry["shape"]
    if entry["dtype"] not in DTYPES:
        raise FormatError(
            f"holds {name!r} in {entry['dtype']}. Save it in one of {listed(list(DTYPES))}."
        )
    dtype, stored = DTYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    if end - begin != n_rows * n_features * np.dtype(stored).itemsize:
        raise FormatError(
            f"is damaged: the size of {name!r} does not fit its shape. Copy it again."
        )
    expect_size(path, start + end)
    return SafetensorsFile(
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=dtype,
        column=name,
        chunk_rows=chunk_rows,
        offset=start + begin,
        stored=stored,
    )


def read_header(path: str) -> tuple[dict[str, dict[str, Any]], int]:
    """(entry of each tensor, offset of the first byte after the header)."""
    size, _ = paths.status(path)
    length = int.from_bytes(paths.read_bytes(path, 0, 8), "little")
    if length > size - 8:
        raise FormatError(
            f"is truncated or not a safetensors file: a header of {length} bytes does not fit its "
            f"{size}. Write or copy it again."
        )
    tensors = json.loads(paths.read_bytes(path, 8, length))
    if not isinstance(tensors, dict):
        raise ValueError("its header is not a JSON object")
    tensors.pop("__metadata__", None)
    return tensors, 8 + length


def choose(tensors: dict[str, dict[str, Any]], column: Column) -> str:
    """The tensor that column names, by default the only matrix."""
    shapes = [f"{name!r} {tuple(entry['shape'])}" for name, entry in tensors.items()]
    there = ", ".join(shapes[:20]) + (f" and {len(shapes) - 20} others" if shapes[20:] else "")
    if column is None:
        matrices = [name for name, entry in tensors.items() if len(entry["shape"]) == 2]
        if len(matrices) != 1:
            raise FormatError(
                f"holds {len(matrices)} matrices among {there}. Choose a tensor with column."
            )
        return matrices[0]
    name = str(column)
    if name not in tensors:
        raise FormatError(f"has no tensor {name!r}, only {there}. Choose one with column.")
    if len(tensors[name]["shape"]) != 2:
        raise FormatError(f"holds {name!r} without two dimensions: {there}. Choose another.")
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

"""Rows of vectors in PostgreSQL's binary COPY format, in which pgvector has its own."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy.errors import brief
from isotropy.sources.files import FormatError, Matrix

HEADER = 19  # bytes: the signature of binary COPY, flags, and the length of an extension
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def parsed(
    data: bytes, n_features: int, dtype: str, whole: bool | None
) -> tuple[Matrix, pa.Array | None]:
    """(rows, keys) of a binary COPY of vectors, whose keys come first: integers or else text.

    NULL is a row of NaN. Without keys, `whole` is None.
    """
    item = np.dtype(dtype).newbyteorder(">")
    vector = [("n_bytes", ">i4"), ("width", ">i2"), ("unused", ">i2"), ("values", item, n_features)]
    own: list[Any] = [("key_bytes", ">i4"), ("key", ">i8")] if whole else []
    row = np.dtype([("n_columns", ">i2"), *own, *vector])
    n_rows, rest = divmod(len(data) - HEADER - len(TRAILER), row.itemsize)
    if whole is not False and not rest:  # all rows take the same number of bytes
        found = np.frombuffer(data, row, n_rows, HEADER)
        n_bytes = 4 + item.itemsize * n_features
        sizes = {"n_columns": 1 + len(own) // 2, "n_bytes": n_bytes, "width": n_features}
        if all((found[name] == size).all() for name, size in sizes.items()):
            keys = pa.array(found["key"].astype(np.int64)) if whole else None
            return found["values"].astype(dtype), keys
    return _parsed_singly(data, n_features, item, whole)


def _parsed_singly(
    data: bytes, n_features: int, item: Any, whole: bool | None
) -> tuple[Matrix, pa.Array | None]:
    rows: list[NDArray[Any]] = []
    keys: list[Any] = []
    missing = np.full(n_features, np.nan, item)
    at = HEADER
    while data[at : at + 2] != TRAILER:
        at += 2
        if whole is not None:
            (size,) = struct.unpack_from(">i", data, at)
            raw = data[at + 4 : at + 4 + size]
            keys.append(struct.unpack(">q", raw)[0] if whole else raw.decode())
            at += 4 + size
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0:
            rows.append(missing)
            continue
        (width,) = struct.unpack_from(">h", data, at)
        if width != n_features:
            where = f"the row with the key {brief(keys[-1])}" if keys else f"row {len(rows)}"
            raise FormatError(
                f"has {width} features in {where}, but {n_features} in the first. Vectors must "
                "have one width: drop the others."
            )
        rows.append(np.frombuffer(data, item, n_features, at + 4))
        at += size
    stacked = np.stack(rows) if rows else np.empty((0, n_features))
    made = None if whole is None else pa.array(keys, pa.int64() if whole else pa.string())
    return stacked.astype(item.newbyteorder("=")), made


def composed(rows: NDArray[Any], keys: Any) -> bytes:
    """Rows and their keys, integers or text, as a binary COPY."""
    item = rows.dtype.newbyteorder(">")
    n_features = rows.shape[1]
    whole = isinstance(keys, np.ndarray)
    own: list[Any] = [("n_columns", ">i2"), ("key_bytes", ">i4"), ("key", ">i8")] if whole else []
    vector = [("n_bytes", ">i4"), ("width", ">i2"), ("unused", ">i2"), ("values", item, n_features)]
    found = np.zeros(len(rows), np.dtype([*own, *vector]))
    found["n_bytes"], found["width"] = 4 + item.itemsize * n_features, n_features
    found["values"] = rows
    if whole:
        found["n_columns"], found["key_bytes"], found["key"] = 2, 8, keys
        return SIGNATURE + found.tobytes() + TRAILER
    parts = [SIGNATURE]
    for key, row in zip((key.encode() for key in keys), found, strict=True):
        parts += [struct.pack(">hi", 2, len(key)), key, row.tobytes()]
    return b"".join([*parts, TRAILER])

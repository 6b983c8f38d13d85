"""numpy's .npy: a header, then the values."""

from __future__ import annotations

import io
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from isotropy.errors import brief, one_line
from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError
from isotropy.sources.flat import FlatFile, expect_bytes
from isotropy.sources.sinks import Sink

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]

HEADER_BYTES = 10_000  # numpy's own limit, up to which it parses a header
LARGEST = 1 << 62  # of a dimension: sizes stay below it in any file there is


class NpyFile(FlatFile):
    kind = ".npy"


def open_npy(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file:
        header, offset = read_header(file)
        size, _ = paths.status(path)
        return flat(path, header, offset, size - offset, chunk_rows)


def read_header(file: IO[bytes]) -> tuple[Header, int]:
    """((shape, Fortran order, dtype), offset of the first value), from the first bytes only."""
    start = file.read(12 + HEADER_BYTES)
    version = tuple(start[6:8])
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if start[:6] != npy.MAGIC_PREFIX:
        raise FormatError(
            "is damaged or not a .npy file: it does not begin as one. Write or copy it again."
        )
    if version not in readers:
        raise FormatError(f"is of .npy version {version}, which holds no plain numbers.")
    stream = io.BytesIO(start[8:])
    try:
        shape, fortran, dtype = readers[version](stream)
    except (ValueError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise FormatError(
            f"has a header that is damaged ({one_line(str(error).split(chr(10))[0], 80)}). Write "
            "or copy it again."
        ) from None
    if any(type(size) is not int or not 0 <= size < LARGEST for size in shape):
        raise FormatError(
            f"has a header with the shape {brief(shape)}, which no array has. Write or copy it "
            "again."
        )
    return (shape, fortran, dtype), 8 + stream.tell()


def expect_matrix(header: Header, name: str = "an array") -> None:
    """Raise unless the header is one of a matrix of real numbers."""
    shape, _, dtype = header
    if dtype.hasobject:
        raise FormatError(f"holds {name} of Python objects (pickled). Save it as float32.")
    if dtype.kind not in "fiu":
        raise FormatError(f"holds {name} of dtype {one_line(str(dtype), 60)}. Save it as float32.")
    if len(shape) != 2:
        raise FormatError(f"holds {name} of shape {brief(shape)}. Save it with two dimensions.")


def flat(
    path: str,
    header: Header,
    offset: int,
    n_bytes: int,
    chunk_rows: int | None,
    column: str | None = None,
) -> NpyFile:
    """The array whose values take n_bytes from offset on."""
    expect_matrix(header)
    shape, fortran, dtype = header
    expect_bytes(n_bytes, shape[0] * shape[1] * dtype.itemsize)
    return NpyFile(
        path=path,
        n_rows=shape[0],
        n_features=shape[1],
        dtype=dtype.name,
        column=column,
        chunk_rows=chunk_rows,
        offset=offset,
        stored=dtype.str,
        fortran=fortran and shape[0] > 1,
    )


class NpySink(Sink):
    """One array; the header is written again when the number of rows is known."""

    def _begin(self) -> None:
        self.file.write(self._header())

    def _finish(self) -> None:
        self.file.seek(0)
        self.file.write(self._header())

    def _header(self) -> bytes:
        """As long for any number of rows: numpy leaves room for it to grow."""
        header = io.BytesIO()
        shape = (self.n_rows, self.n_features)
        descr = npy.dtype_to_descr(np.dtype(self.dtype))
        npy.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        return header.getvalue()

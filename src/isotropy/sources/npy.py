"""numpy's .npy: a header, then the values."""

from __future__ import annotations

import io
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError
from isotropy.sources.flat import FlatFile, expect_size
from isotropy.sources.sinks import Sink

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


class NpyFile(FlatFile):
    kind = ".npy"


def open_npy(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file:
        header = read_header(file)
        return flat(path, header, file.tell(), chunk_rows)


def read_header(file: IO[bytes]) -> Header:
    """(shape, Fortran order, dtype); the file then stands at the first value."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise FormatError(f"is of .npy version {version}, which holds no plain numbers.")
    return readers[version](file)


def expect_matrix(header: Header, name: str = "an array") -> None:
    """Raise unless the header is one of a matrix of real numbers."""
    shape, _, dtype = header
    if dtype.hasobject:
        raise FormatError(f"holds {name} of Python objects (pickled). Save it as float32.")
    if dtype.kind not in "fiu":
        raise FormatError(f"holds {name} of dtype {dtype}. Save it as float32.")
    if len(shape) != 2:
        raise FormatError(f"holds {name} of shape {shape}. Save it with two dimensions.")


def flat(
    path: str, header: Header, offset: int, chunk_rows: int | None, column: str | None = None
) -> NpyFile:
    expect_matrix(header)
    shape, fortran, dtype = header
    expect_size(path, offset + shape[0] * shape[1] * dtype.itemsize)
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

"""numpy's .npy and .npz files."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, Any, ClassVar

import numpy as np
from numpy.lib import format as npy

from isotropy.errors import brief, one_line
from isotropy.sources import paths
from isotropy.sources.files import TRUNCATED, Column, File, FormatError, Pieces, Place, listed
from isotropy.sources.flat import FlatFile, expect_bytes
from isotropy.sources.sinks import Sink

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]

HEADER_BYTES = 10_000  # the longest header that numpy parses
LARGEST = 1 << 62  # size of a dimension


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
        ) from error
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
        """Its length does not depend on the number of rows: numpy pads it."""
        header = io.BytesIO()
        shape = (self.n_rows, self.n_features)
        descr = npy.dtype_to_descr(np.dtype(self.dtype))
        npy.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        return header.getvalue()


LOCAL_HEADER = 30  # bytes before the name in a member's own header
BLOCK = 1 << 24
UNREADABLE = 0x1 | 0x20 | 0x40  # flags of a member that is encrypted or patched
DEFLATE_RATIO = 1032  # the highest that zlib reaches


@dataclass(frozen=True, kw_only=True)
class CompressedFile(File):
    """A compressed member, which is one piece because it can only be read from its beginning."""

    kind: ClassVar[str] = ".npz"
    member: str
    offset: int
    stored: str

    def pieces(self) -> list[tuple[int, Place]]:
        return [(self.n_rows, ())]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        width = self.n_features * np.dtype(self.stored).itemsize
        with _open_archive(self.path) as (_, archive), _open_member(archive, self.member) as member:
            member.read(self.offset)
            for start in range(0, n_rows, self.rows_at_once):
                n_bytes = min(self.rows_at_once, n_rows - start) * width
                data = member.read(n_bytes)
                if len(data) < n_bytes:
                    raise FormatError(TRUNCATED)
                yield np.frombuffer(data, self.stored).reshape(-1, self.n_features), None


def open_npz(path: str, column: Column, chunk_rows: int | None) -> File:
    with _open_archive(path) as (file, archive):
        headers: dict[str, Header] = {}
        entries: dict[str, zipfile.ZipInfo] = {}
        starts: dict[str, int] = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename:
                continue
            if name in headers:
                raise FormatError(f"holds {brief(name)} twice. Write it again.")
            if entry.flag_bits & UNREADABLE:
                raise FormatError("is encrypted. Write it again, without a password.")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FormatError(
                    f"holds {brief(name)} compressed in a way that numpy does not write. Save it "
                    "with numpy.savez_compressed."
                )
            with _open_member(archive, entry) as member:
                headers[name], starts[name] = read_header(member)
            entries[name] = entry
        name = choose(headers, column)
        entry, n_bytes = entries[name], entries[name].file_size - starts[name]
        if entry.compress_type == zipfile.ZIP_STORED:
            begin = _first_byte(file, entry)
            _expect_checksum(file, begin, entry)
            return flat(path, headers[name], begin + starts[name], n_bytes, chunk_rows, name)
    shape, fortran, dtype = headers[name]
    if fortran and shape[0] > 1 and shape[1] > 1:
        raise FormatError(
            f"holds {brief(name)} compressed and in Fortran order. Save it in C order."
        )
    expect_bytes(n_bytes, shape[0] * shape[1] * dtype.itemsize)
    if entry.file_size > DEFLATE_RATIO * (entry.compress_size + 1):
        raise FormatError(
            f"is damaged: {entry.compress_size} bytes of {brief(name)} cannot unpack to "
            f"{entry.file_size}. Write or copy it again."
        )
    return CompressedFile(
        path=path,
        n_rows=shape[0],
        n_features=shape[1],
        dtype=dtype.name,
        column=name,
        chunk_rows=chunk_rows,
        member=entry.filename,
        offset=starts[name],
        stored=dtype.str,
    )


@contextmanager
def _open_archive(path: str) -> Iterator[tuple[IO[bytes], zipfile.ZipFile]]:
    with paths.open_binary(path) as file:
        if file.read(4) not in (b"PK\3\4", b"PK\5\6"):  # zipfile would look from the end only
            raise zipfile.BadZipFile("it does not begin as a zip archive")
        with _bad_zip():
            archive = zipfile.ZipFile(file)
        with archive:
            yield file, archive


def _open_member(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> IO[bytes]:
    with _bad_zip():
        return archive.open(member)


@contextmanager
def _bad_zip() -> Iterator[None]:
    """Turn other errors that zipfile raises on a damaged archive into BadZipFile."""
    try:
        yield
    except (ValueError, NotImplementedError, struct.error) as error:
        raise zipfile.BadZipFile(str(error)) from error


def _first_byte(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin."""
    file.seek(entry.header_offset + LOCAL_HEADER - 4)
    lengths = np.frombuffer(file.read(4), "<u2")  # of the name and the extra field
    return entry.header_offset + LOCAL_HEADER + int(lengths.sum())


def _expect_checksum(file: IO[bytes], begin: int, entry: zipfile.ZipInfo) -> None:
    """Raise unless the checksum of a stored member is right; its rows are read by offset."""
    file.seek(begin)
    left, checksum = entry.file_size, 0
    while left and (block := file.read(min(left, BLOCK))):
        checksum, left = zlib.crc32(block, checksum), left - len(block)
    if left or checksum != entry.CRC:
        raise FormatError(
            f"is damaged: the checksum of {brief(entry.filename)} is wrong. Write or copy it again."
        )


def choose(headers: dict[str, Header], column: Column) -> str:
    """The array that column names, by default the only matrix."""
    if column is not None:
        name = str(column)
        if name not in headers:
            raise FormatError(
                f"has no array {brief(name)}, only {listed(list(headers))}. Choose one with column."
            )
    else:
        matrices = [key for key, (shape, _, _) in headers.items() if len(shape) == 2]
        if len(matrices) != 1:
            raise FormatError(
                f"holds {len(matrices)} matrices among {listed(list(headers))}. Choose an array "
                "with column."
            )
        (name,) = matrices
    expect_matrix(headers[name], f"the array {brief(name)}")
    return name

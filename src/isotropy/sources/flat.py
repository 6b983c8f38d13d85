"""Binary files of rows of equal size: .npy, .npz, safetensors, .fvecs and .fbin and the like."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from isotropy import stored
from isotropy.errors import InputError, brief, one_line
from isotropy.sources import paths
from isotropy.sources.base import Room, balanced_rows, default_rows, widened
from isotropy.sources.files import (
    ORIGIN,
    TRUNCATED,
    Column,
    File,
    FormatError,
    Pieces,
    Place,
    listed,
)
from isotropy.sources.sinks import CODES, FLOATS, Sink

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]  # shape, Fortran order, dtype

FVECS = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}  # of TEXMEX
FBIN = {".fbin": "<f4", ".u8bin": "|u1", ".i8bin": "|i1"}  # of big-ann-benchmarks
HEADER_BYTES = 10_000  # the longest header that numpy parses
LARGEST = 1 << 62  # size of a dimension
LOCAL_HEADER = 30  # bytes before the name in a member's own header
BLOCK = 1 << 24
UNREADABLE = 0x1 | 0x20 | 0x40  # flags of a member that is encrypted or patched
DEFLATE_RATIO = 1032  # the highest that zlib reaches


@dataclass(frozen=True, kw_only=True)
class FlatFile(File):
    """n_rows x n_features values from `offset` on.

    `stored` is numpy's code of a value ("<f4"), with bfloat16 as "<u2"; `fortran` has whole
    columns one after the other, and `prefix` puts a 4-byte width before each row.
    """

    offset: int
    stored: str
    fortran: bool = False
    prefix: bool = False

    @property
    def rows_at_once(self) -> int:
        return self.chunk_rows or balanced_rows(self.n_rows, self.n_features)

    def coarse(self) -> FlatFile:
        return replace(self, chunk_rows=self.chunk_rows or default_rows(self.n_features))

    @property
    def stored_bytes(self) -> int:
        if self.fortran or self.prefix or self.dtype == "bfloat16":
            return 0
        return self.n_features * np.dtype(self.stored).itemsize

    def read_stored(self, first_row: int, n_rows: int, room: Room) -> Pieces:
        rows = room((n_rows, self.n_features), self.stored)
        with paths.open_binary(self.path) as file:
            fill(file, self.offset + first_row * self.stored_bytes, rows)
        yield rows, None

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        if self.stored_bytes:
            yield from self.read_stored(first_row, n_rows, np.empty)
            return
        values = ("values", self.stored, (self.n_features,))
        row = np.dtype([("width", "<i4"), values] if self.prefix else [values])
        with paths.open_binary(self.path) as file:
            if self.fortran:
                columns = np.empty((self.n_features, n_rows), self.stored)
                for j, column in enumerate(columns):
                    value = j * self.n_rows + first_row
                    fill(file, self.offset + value * columns.dtype.itemsize, column)
                rows = np.ascontiguousarray(columns.T)
            else:
                found = np.empty(n_rows, row)
                fill(file, self.offset + first_row * row.itemsize, found)
                rows = np.ascontiguousarray(found["values"])
        if self.prefix:
            wrong = np.flatnonzero(found["width"] != self.n_features)
            if len(wrong):
                raise FormatError(
                    f"has {found['width'][wrong[0]]} features in row {first_row + wrong[0]}, but "
                    f"{self.n_features} in the first. Write rows of one width."
                )
        yield widened(rows) if self.dtype == "bfloat16" else rows, None


@dataclass(frozen=True, kw_only=True)
class CompressedFile(FlatFile):
    """A compressed member, which is one piece because it can only be read from its beginning."""

    member: str

    @property
    def stored_bytes(self) -> int:
        return 0

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


def choose(shapes: dict[str, tuple[int, ...]], column: Column, word: str, there: str) -> str:
    """The name of the array that column names, by default of the only matrix."""
    if column is None:
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        if len(matrices) != 1:
            raise FormatError(
                f"holds {len(matrices)} matrices among {there}. Choose one with column."
            )
        return matrices[0]
    name = str(column)
    if name not in shapes:
        raise FormatError(f"has no {word} {brief(name)}, only {there}. Choose one with column.")
    return name


def open_fvecs(path: str, column: Column, chunk_rows: int | None) -> File:
    code = np.dtype(FVECS[path[path.rindex(".") :].lower()])
    size, *_ = paths.stamp(path)
    n_features = int.from_bytes(paths.read_bytes(path, 0, 4), "little")
    row = 4 + n_features * code.itemsize
    if not n_features or size % row:
        raise FormatError(
            f"is truncated or not a .fvecs file: rows of {n_features} values do not fit its {size} "
            "bytes. Write or copy it again."
        )
    return FlatFile(
        kind=".fvecs",
        path=path,
        n_rows=size // row,
        n_features=n_features,
        dtype=code.name,
        chunk_rows=chunk_rows,
        offset=0,
        stored=code.str,
        prefix=True,
    )


def open_fbin(path: str, column: Column, chunk_rows: int | None) -> File:
    kind = path[path.rindex(".") :].lower()
    code = np.dtype(FBIN[kind])
    size, *_ = paths.stamp(path)
    header = paths.read_bytes(path, 0, 8)
    if len(header) < 8:
        raise FormatError(TRUNCATED)
    n_rows, n_features = map(int, np.frombuffer(header, "<u4"))
    expect_bytes(size - 8, n_rows * n_features * code.itemsize)
    return FlatFile(
        kind=kind,
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=code.name,
        chunk_rows=chunk_rows,
        offset=8,
        stored=code.str,
    )


def open_safetensors(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file:
        try:
            found = stored.Safetensors(file, paths.stamp(path)[0])
        except InputError as error:
            raise FormatError(
                f"is damaged or not a safetensors file: {error}. Write or copy it again."
            ) from error
    shapes = {name: entry.shape for name, entry in found.entries.items()}
    there = listed(list(shapes.items()), word=lambda item: f"{brief(item[0])} {brief(item[1])}")
    name = choose(shapes, column, "tensor", there)
    if len(shapes[name]) != 2:
        raise FormatError(f"holds {brief(name)} without two dimensions: {there}. Choose another.")
    n_rows, n_features = shapes[name]
    entry = found.entries[name]
    if entry.dtype not in stored.DTYPES or entry.dtype == "BOOL":
        numbers = [code for code in stored.DTYPES if code != "BOOL"]
        raise FormatError(
            f"holds {brief(name)} in {one_line(entry.dtype, 40)}. Save it in one of "
            f"{listed(numbers)}."
        )
    code = stored.DTYPES[entry.dtype]
    return FlatFile(
        kind="safetensors",
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype="bfloat16" if entry.dtype == "BF16" else np.dtype(code).name,
        column=name,
        chunk_rows=chunk_rows,
        offset=found.start + entry.begin,
        stored=code,
        origin=found.metadata.get(ORIGIN, ""),
    )


def open_npy(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file:
        header, offset = _read_header(file)
    size, *_ = paths.stamp(path)
    return _array_file(path, header, offset, size - offset, chunk_rows)


def open_npz(path: str, column: Column, chunk_rows: int | None) -> File:
    members: dict[str, tuple[zipfile.ZipInfo, Header, int]] = {}
    with _open_archive(path) as (file, archive):
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename:
                continue
            if name in members:
                raise FormatError(f"holds {brief(name)} twice. Write it again.")
            if entry.flag_bits & UNREADABLE:
                raise FormatError("is encrypted. Write it again, without a password.")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FormatError(
                    f"holds {brief(name)} compressed in a way that numpy does not write. Save it "
                    "with numpy.savez_compressed."
                )
            with _open_member(archive, entry) as member:
                members[name] = entry, *_read_header(member)
        shapes = {name: header[0] for name, (_, header, _) in members.items()}
        name = choose(shapes, column, "array", listed(list(members)))
        entry, header, start = members[name]
        n_bytes = entry.file_size - start
        if entry.compress_type == zipfile.ZIP_STORED:
            begin = _first_byte(file, entry)
            return _array_file(path, header, begin + start, n_bytes, chunk_rows, name)
    shape, fortran, _ = header
    if fortran and len(shape) == 2 and min(shape) > 1:
        raise FormatError(
            f"holds {brief(name)} compressed and in Fortran order. Save it in C order."
        )
    found = _array_file(path, header, start, n_bytes, chunk_rows, name, entry.filename)
    if entry.file_size > DEFLATE_RATIO * (entry.compress_size + 1):
        raise FormatError(
            f"is damaged: {entry.compress_size} bytes of {brief(name)} cannot unpack to "
            f"{entry.file_size}. Write or copy it again."
        )
    return found


def _read_header(file: IO[bytes]) -> tuple[Header, int]:
    """The header and the offset of the first value, from the first bytes only."""
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


def _array_file(
    path: str,
    header: Header,
    offset: int,
    n_bytes: int,
    chunk_rows: int | None,
    name: str | None = None,
    compressed: str = "",
) -> FlatFile:
    """The array whose values take n_bytes from offset on, of the file or of a compressed member."""
    shape, fortran, dtype = header
    what = "an array" if name is None else f"the array {brief(name)}"
    if dtype.hasobject:
        raise FormatError(f"holds {what} of Python objects (pickled). Save it as float32.")
    if dtype.kind not in "fiu":
        raise FormatError(f"holds {what} of dtype {one_line(str(dtype), 60)}. Save it as float32.")
    if len(shape) != 2:
        raise FormatError(f"holds {what} of shape {brief(shape)}. Save it with two dimensions.")
    expect_bytes(n_bytes, shape[0] * shape[1] * dtype.itemsize)
    fields: dict[str, Any] = {
        "path": path,
        "n_rows": shape[0],
        "n_features": shape[1],
        "dtype": dtype.name,
        "column": name,
        "chunk_rows": chunk_rows,
        "offset": offset,
        "stored": dtype.str,
        "fortran": fortran and shape[0] > 1,
    }
    if compressed:
        return CompressedFile(kind=".npz", member=compressed, **fields)
    return FlatFile(kind=".npy", **fields)


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
    """Where the bytes of a stored member begin; raises if its checksum is wrong."""
    file.seek(entry.header_offset + LOCAL_HEADER - 4)
    lengths = np.frombuffer(file.read(4), "<u2")  # of the name and the extra field
    begin = entry.header_offset + LOCAL_HEADER + int(lengths.sum())
    file.seek(begin)
    left, checksum = entry.file_size, 0
    while left and (block := file.read(min(left, BLOCK))):
        checksum, left = zlib.crc32(block, checksum), left - len(block)
    if left or checksum != entry.CRC:
        raise FormatError(
            f"is damaged: the checksum of {brief(entry.filename)} is wrong. Write or copy it again."
        )
    return begin


class NpySink(Sink):
    """One array; the header is written again when the number of rows is known."""

    dtypes = (*FLOATS, *CODES)

    def _begin(self) -> None:
        """The length of the header does not depend on the number of rows: numpy pads it."""
        shape = (self.n_rows, self.n_features)
        descr = npy.dtype_to_descr(np.dtype(self.dtype))
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self.file, header)

    def _finish(self) -> None:
        self.file.seek(0)
        self._begin()


class SafetensorsSink(Sink):
    """One tensor, "embeddings"; the header has a known size and is written last."""

    HEADER = 192  # bytes, without the metadata
    NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
    NAMES |= {"int8": "I8", "uint8": "U8"}
    dtypes = tuple(NAMES)

    def _begin(self) -> None:
        self.metadata = {"__metadata__": {ORIGIN: self.origin}} if self.origin else {}
        self.header = self.HEADER + -(-len(json.dumps(self.metadata)) // 8) * 8
        self.file.write(b" " * (8 + self.header))

    def _finish(self) -> None:
        n_bytes = self.file.tell() - 8 - self.header
        entry = {
            "dtype": self.NAMES[self.dtype],
            "shape": [self.n_rows, self.n_features],
            "data_offsets": [0, n_bytes],
        }
        text = json.dumps(self.metadata | {"embeddings": entry}).encode().ljust(self.header)
        self.file.seek(0)
        self.file.write(self.header.to_bytes(8, "little") + text)

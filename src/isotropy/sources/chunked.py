"""HDF5 files and Zarr folders: arrays with names, stored in chunks.

Both are read by their own libraries, which refuse most damage. What they would pass over in
silence is refused here: chunks that are missing (they read as zeros), values that lie in other
files, and codecs that run code.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy.errors import brief, needs, one_line
from isotropy.sources import paths
from isotropy.sources.base import default_rows
from isotropy.sources.files import Column, File, FormatError, Pieces, Place, listed
from isotropy.sources.flat import choose

DAMAGE = (ValueError, TypeError, AttributeError, LookupError, RuntimeError, ArithmeticError)
MOST_CHUNK = 1 << 30  # bytes of a stored chunk, which is unpacked at once
CODECS = {  # of Zarr, none of which runs code that it reads
    "blosc", "bytes", "bz2", "crc32c", "delta", "endian", "gzip", "lz4", "lzma", "shuffle",
    "transpose", "zlib", "zstd", "sharding_indexed",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChunkedFile(File):
    """The rows of one array; `stored_rows` is how many of them a stored chunk has."""

    column: str
    stored_rows: int

    @property
    def rows_at_once(self) -> int:
        """Whole stored chunks, none of which is then unpacked twice."""
        rows = self.chunk_rows or default_rows(self.n_features)
        return self.chunk_rows or max(rows // self.stored_rows, 1) * self.stored_rows

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        with self.opened() as found:
            yield np.asarray(found[self.column][first_row : first_row + n_rows]), None

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """What gives the array by its name, while it is open."""


@dataclass(frozen=True, kw_only=True)
class Hdf5File(ChunkedFile):
    kind: str = "HDF5"

    def opened(self) -> AbstractContextManager[Any]:
        return _hdf5(self.path)


@dataclass(frozen=True, kw_only=True)
class ZarrFile(ChunkedFile):
    kind: str = "Zarr"

    def opened(self) -> AbstractContextManager[Any]:
        return _zarr(self.path)


def open_hdf5(path: str, column: Column, chunk_rows: int | None) -> File:
    arrays: dict[str, Any] = {}

    def add(name: str, item: Any) -> None:
        if hasattr(item, "shape"):  # a dataset, not a group
            arrays[name] = item

    with _hdf5(path) as file:
        file.visititems(add)  # which follows no links to other files
        name = _chosen(arrays, column, "dataset")
        data = arrays[name]
        if data.external or data.is_virtual:
            raise FormatError(
                f"holds {brief(name)} by reference to other files. Copy the values into one file."
            )
        if data.chunks is None:
            promised = data.size * data.dtype.itemsize
            _expect_written(name, data.id.get_storage_size() == promised)
        else:
            _expect_written(name, data.id.get_num_chunks() == _n_chunks(data, data.chunks))
        stored = data.chunks or (1, 1)
        return _array(Hdf5File, path, name, data, stored, chunk_rows)


def open_zarr(path: str, column: Column, chunk_rows: int | None) -> File:
    if paths.is_remote(path):
        raise FormatError("must be a local folder. Copy it here first.")
    with _zarr(path) as found:
        members = found.items() if isinstance(found, dict) else found.members(max_depth=None)
        arrays = {name: item for name, item in members if hasattr(item, "shape")}
        name = _chosen(arrays, column, "array")
        data = arrays[name]
        unknown = [codec for codec in _codecs(data.metadata.to_dict()) if codec not in CODECS]
        if unknown:
            raise FormatError(
                f"packs {brief(name)} with {listed(unknown)}, and only {', '.join(sorted(CODECS))} "
                "are unpacked. Write it again with one of these."
            )
        stored = data.shards or data.chunks
        n_files = sum(len(names) for *_, names in os.walk(os.path.join(path, name)))
        promised = _n_chunks(data, stored)
        n_inside = math.prod(stored) // math.prod(data.chunks)  # of a shard, if there are any
        # zarr lists all chunks that are promised, which may be more than memory holds
        whole = promised <= n_files and data.nchunks_initialized == promised * n_inside
        _expect_written(name, whole)
        return _array(ZarrFile, path, name, data, stored, chunk_rows)


def _chosen(arrays: dict[str, Any], column: Column, word: str) -> str:
    """The array that column names, by default the only matrix; its values must be numbers."""
    shapes = {name: tuple(array.shape or ()) for name, array in arrays.items()}
    there = listed(list(shapes.items()), word=lambda item: f"{brief(item[0])} {brief(item[1])}")
    name = choose(shapes, column, word, there or "nothing")
    if len(shapes[name]) != 2:
        raise FormatError(f"holds {brief(name)} without two dimensions: {there}. Choose another.")
    if arrays[name].dtype.kind not in "fiu":
        raise FormatError(
            f"holds {brief(name)} of dtype {one_line(str(arrays[name].dtype), 60)}. Save it as "
            "float32."
        )
    return name


def _n_chunks(data: Any, chunks: Any) -> int:
    return math.prod(-(-size // step) for size, step in zip(data.shape, chunks, strict=True))


def _expect_written(name: str, whole: bool) -> None:
    """Raise unless all chunks are there: those that are missing would be read as zeros."""
    if not whole:
        raise FormatError(
            f"is incomplete: some chunks of {brief(name)} are missing. Write or copy it again, "
            "empty chunks included."
        )


def _array(
    kind: type[Hdf5File | ZarrFile],
    path: str,
    name: str,
    data: Any,
    stored: Any,
    chunk_rows: int | None,
) -> File:
    n_bytes = stored[0] * min(stored[1], data.shape[1]) * data.dtype.itemsize
    if n_bytes > MOST_CHUNK:
        raise FormatError(
            f"holds {brief(name)} in chunks of {brief(n_bytes)} bytes, and at most {MOST_CHUNK:,} "
            "are unpacked at once. Write it again in smaller ones."
        )
    return kind(
        path=path,
        n_rows=int(data.shape[0]),
        n_features=int(data.shape[1]),
        dtype=data.dtype.name,
        column=name,
        chunk_rows=chunk_rows,
        stored_rows=int(stored[0]),
    )


@contextmanager
def _hdf5(path: str) -> Iterator[Any]:
    """The file, which gives its datasets by name."""
    with needs("h5py", "hdf5"):
        import h5py
    source = paths.open_binary(path) if paths.is_remote(path) else path
    with _damage(), h5py.File(source, "r") as file:
        yield file


@contextmanager
def _zarr(path: str) -> Iterator[Any]:
    """The group, which gives its arrays by name; an array that is alone has none."""
    with needs("zarr", "zarr"):
        import zarr
    with _damage():
        try:
            top = zarr.open(path, mode="r")
        except FileNotFoundError as error:
            raise FormatError("holds no array. Write or copy it again.") from error
        yield top if hasattr(top, "members") else {"": top}


@contextmanager
def _damage() -> Iterator[None]:
    """Turn what the libraries raise on a damaged file into one line."""
    try:
        yield
    except (FormatError, OSError):
        raise
    except DAMAGE as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise FormatError(
            f"is damaged or not as it should be ({one_line(lines[0], 160)}). Write or copy it "
            "again."
        ) from error


def _codecs(metadata: Any) -> Iterator[str]:
    """The names of all codecs in an array's metadata, also of those inside shards."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        found = metadata.get(key) or ()
        for codec in [found] if isinstance(found, dict) else found:
            yield str(codec.get("id") or codec.get("name")).removeprefix("numcodecs.")
            yield from _codecs(codec.get("configuration") or {})

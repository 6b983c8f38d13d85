"""Where vectors are written, and the rule for all outputs: never replace what is read."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources import addresses, paths
from isotropy.sources.base import Batch, Chunk, Source, mapped_files, narrowed, widened
from isotropy.sources.files import wide
from isotropy.writing import NewFile, NewFolder, is_ours, is_stream, quoted, status, write_errors

if TYPE_CHECKING:
    import pyarrow as pa

DRAWN = (".html", ".htm", ".svg", ".png", ".pdf")  # never read, wherever they are
FLOATS = ("float16", "float32", "float64")
CODES = ("int8", "uint8")
SINKS = {  # suffix: (module, class)
    ".npy": ("flat", "NpySink"),
    ".parquet": ("columnar", "ParquetSink"),
    ".safetensors": ("flat", "SafetensorsSink"),
    ".txt": ("word2vec", "WordsSink"),
    ".vec": ("word2vec", "WordsSink"),
}

Identity = tuple[Any, ...]


class ChunkWriter:
    """What engines ask of any target of rows: to write the chunks of a source, in order.

    A target that can resume says in `n_done` how many rows of the source an interrupted run has
    dealt with, of which it left out `n_skipped`. One that `carries` nothing has no room for other
    columns. One that is not `apart` may be where the source is: a chunk is read to its end first.
    """

    n_done = 0
    n_skipped = 0
    carries = True
    apart = True

    @property
    def vectors(self) -> str | None:
        """The name of the column of vectors; None where columns have no names."""
        return None

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows, with their other columns if there is room for them."""
        raise NotImplementedError

    def write_batch(self, batch: Batch) -> None:
        """Append the rows of a batch."""
        self.write(batch.rows, batch.carried)

    def commit(self, chunk: Chunk, n_skipped: int) -> None:
        """All rows of a chunk have been written, but for `n_skipped` that were left out."""


class Sink(ChunkWriter):
    """A file of rows that appears under its name only when it is complete.

    After an exception, an older file of that name is unchanged. Use `open_sink` to get a sink. One
    that is `part_of` a folder may stay empty, and messages name the folder.
    """

    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    def __init__(
        self,
        path: str,
        n_features: int,
        dtype: str,
        *,
        column: str | None = None,
        n_rows: int | None = None,
        overwrite: bool = False,
        part_of: str = "",
        origin: str = "",
    ) -> None:
        self.origin = origin
        self.path, self.part_of, self.overwrite = path, part_of, overwrite
        self.n_features, self.column = n_features, column
        computed = "float64" if wide(dtype) else "float32"
        self.dtype = dtype if dtype in self.dtypes else computed
        self.expected_rows = n_rows
        self.n_rows = 0

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows, with their other columns if the format can store them."""
        rows = linalg.to_numpy(rows)
        checks.width(rows.shape[1], self.n_features)
        if not len(rows):
            return
        with self._write_errors():
            self._write(self._cast(rows), carried)
        self.n_rows += len(rows)

    def __enter__(self) -> Self:
        self.new = NewFile(self.path, self.overwrite)
        try:
            with self._write_errors():
                self.file: IO[bytes] = open(self.new.begin(), "wb")
                self._begin()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or (self.part_of and not self.n_rows):
            self._discard()
            return
        try:
            if not self.n_rows:
                raise InputError(f"there are no rows to write to {quoted(self.path)}.")
            with self._write_errors():
                self._finish()
                self.file.close()
                self.new.finish()
        finally:
            self._discard()

    def _begin(self) -> None:
        """Write what comes before the rows."""

    def _write(self, rows: NDArray[Any], carried: pa.Table | None) -> None:
        self.file.write(np.ascontiguousarray(rows).data)

    def _finish(self) -> None:
        """Write what comes after the rows, or correct what came before."""

    def _abandon(self) -> None:
        """Close what could still write to the file."""

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            self._abandon()
        if hasattr(self, "file"):
            with contextlib.suppress(OSError):
                self.file.close()
        self.new.discard()

    def _cast(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self.dtype in CODES and rows.dtype != self.dtype:
            raise InputError(f"codes must be {self.dtype}, got {rows.dtype}.")
        with np.errstate(over="ignore"):
            narrow = self.dtype == "bfloat16"
            cast = narrowed(rows) if narrow else rows.astype(self.dtype, copy=False)
            values = widened(cast) if narrow else cast
        if values is not rows:
            checks.fits(values, rows, self.dtype, self.n_rows)
        return cast

    def _write_errors(self) -> contextlib.AbstractContextManager[None]:
        return write_errors(self.part_of or self.path, f" after {self.n_rows} rows")


def open_sink(
    path: str | os.PathLike[str],
    n_features: int,
    dtype: str | None = None,
    like: Source | None = None,
    *,
    overwrite: bool = False,
    name: str = "out",
    origin: Mapping[str, Any] | None = None,
    job: str = "",
) -> Sink | PartsSink:
    """The sink of a path: a context manager with `write(rows, carried=None)`, in order.

    Parameters
    ----------
    path : path
        A file that ends in .npy, .parquet, .safetensors, .vec or .txt, or without a suffix a folder
        of Parquet parts. Only Parquet keeps all other columns; word2vec's text keeps the words.
        Or the URL of a database, such as lance:///folder#table.
    n_features : int
    dtype : str, optional
        By default that of `like`, otherwise float32. Floats are kept, except that bfloat16
        becomes float32 outside safetensors; the integers of `like` become float32 or float64.
        int8 and uint8 are for codes, which .npy, Parquet and safetensors hold.
    like : Source, optional
        Source of the rows; Parquet keeps the name of its column.
    overwrite : bool
        Replace what exists. A folder must hold nothing but such parts.
    name : str
        The name of the path in messages.
    origin : mapping, optional
        How the rows were made, as `Source.origin` says it. Parquet and safetensors keep it.
    job : str
        What identifies the work that makes the rows of `like`. An interrupted run that writes to a
        database is resumed only by the same job.
    """
    address = addresses.address(path)
    if address is not None:
        opener = importlib.import_module(f"isotropy.sources.{address.kind}")
        opened: Sink = opener.open_sink(address, n_features, dtype, like, name, job, overwrite)
        return opened
    target = output_path(path, name)
    suffix = os.path.splitext(target)[1].lower()
    dtype = dtype or ("float32" if like is None else floating(like.dtype))
    column = None if like is None else like.column
    made = json.dumps(origin) if origin else ""
    if not suffix:
        if status(target) is not None and not os.path.isdir(target):
            raise InputError(
                f"{name} without a suffix must be a folder, got the file "
                f"{quoted(target)}. Choose another name."
            )
        guard({name: path}, {"X": like}, overwrite=overwrite)
        return PartsSink(target, n_features, dtype, column, overwrite, made)
    if suffix not in SINKS:
        raise InputError(f"{name} must end in one of {', '.join(SINKS)}, got {quoted(target)}.")
    if os.path.isdir(target):
        raise InputError(f"{name} must be a file, got the folder {quoted(target)}.")
    guard({name: path}, {"X": like}, overwrite=overwrite)
    module, kind_name = SINKS[suffix]
    kind: type[Sink] = getattr(importlib.import_module(f"isotropy.sources.{module}"), kind_name)
    n_rows = None if like is None else like.n_samples
    options: Any = {"column": column, "n_rows": n_rows, "overwrite": overwrite, "origin": made}
    return kind(target, n_features, dtype, **options)


def floating(dtype: str) -> str:
    """The dtype if it is floating, otherwise the one in which such rows are computed."""
    return dtype if "float" in dtype else ("float64" if wide(dtype) else "float32")


class PartsSink(ChunkWriter):
    """A folder that appears under its name only when all its parts are complete.

    Inside `with`, `part(i)` is the sink of part i, in other processes too: this object pickles as
    plain values. A part that is written twice because a worker was lost is replaced. A part
    without rows leaves no file. Use `open_sink` to get one.
    """

    def __init__(
        self,
        path: str,
        n_features: int,
        dtype: str,
        column: str | None,
        overwrite: bool,
        origin: str = "",
    ) -> None:
        self.path, self.folder = path, NewFolder(path, overwrite)
        self.n_features, self.dtype, self.column = n_features, dtype, column
        self.origin = origin
        self.n_written = 0

    @property
    def vectors(self) -> str | None:
        return self.part(0).vectors

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows as a part of their own."""
        with self.part(self.n_written) as part:
            part.write(rows, carried)
        self.n_written += 1

    def part(self, number: int) -> Sink:
        """The sink of one part, whose rows follow those of the part before."""
        from isotropy.sources.columnar import ParquetSink

        return ParquetSink(
            os.path.join(self.folder.part, f"part-{number:05d}.parquet"),
            self.n_features,
            self.dtype,
            column=self.column,
            overwrite=True,  # two workers may write the same part
            part_of=self.path,
            origin=self.origin,
        )

    def __enter__(self) -> Self:
        try:
            with write_errors(self.path):
                self.folder.begin()
        except BaseException:
            self.folder.discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if all(name.startswith(".") for name in os.listdir(self.folder.part)):
                    raise InputError(f"there are no rows to write to {quoted(self.path)}.")
                with write_errors(self.path):
                    self.folder.finish()
        finally:
            self.folder.discard()


def guard(
    outputs: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    kept: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Raise unless every output can be written without losing anything.

    An output must not be an input, nor a folder that contains one, however they are spelled: links,
    `~` and file:// are followed to the file itself. Two outputs must differ. Existing files are
    replaced only with `overwrite`, and existing folders only if, in addition, we wrote everything
    in them. Pipes and devices are written to as they are. Databases are left to `open_sink`, which
    connects to them.

    Parameters
    ----------
    outputs, inputs : mappings
        Paths by the name that messages use for them, such as "--out". None is ignored. An input
        may be a list, a glob, a folder, a source, or an array mapped from disk.
    kept : mapping, optional
        Folders that we add to, such as a checkpoint. They may exist.
    overwrite : bool
    """
    new = {
        name: output_path(path, name)
        for name, path in outputs.items()
        if path is not None and addresses.address(path) is None
    }
    grown = {name: paths.normal(path) for name, path in (kept or {}).items() if path is not None}
    _expect_distinct(new | grown)
    read = [(name, path) for name, one in (inputs or {}).items() for path in _read(one)]
    _expect_unread(new, grown, read)
    for name, path in new.items():
        _expect_room(name, path, overwrite)


def output_path(path: Any, name: str) -> str:
    """The absolute local path of an output; messages call it `name`."""
    try:
        found = paths.normal(path)
    except TypeError as error:
        raise InputError(f"{name} must be a path, got {quoted(path)}.") from error
    if paths.is_remote(found):
        raise InputError(
            f"{name} must be a local file, got {quoted(found)}. Write here, then copy it."
        )
    if "\0" in found:
        raise InputError(f"{name} must be a path, got {quoted(found)}.")
    return found


def _expect_distinct(outputs: dict[str, str]) -> None:
    places = {name: _identity(path) for name, path in outputs.items()}
    for name, path in reversed(outputs.items()):
        here = [places[name], *_places_above(path)]
        for other, place in places.items():
            if other != name and place in here:
                raise InputError(
                    f"{name} must be another file than {other}, and not in it, got "
                    f"{quoted(path)}. Choose another name."
                )


def _expect_unread(new: dict[str, str], grown: dict[str, str], read: list[tuple[str, str]]) -> None:
    there = {name: path for name, path in (new | grown).items() if status(path) is not None}
    files = {_identity(path): name for name, path in read} if there else {}
    for name, path in there.items():
        if _identity(path) in files:
            raise InputError(
                f"{name} must be another file than {files[_identity(path)]}, got {quoted(path)} "
                "for both. What is read would be lost; choose another name."
            )
    replaced = {name: path for name, path in there.items() if name in new}
    for name, path in replaced.items():
        for other, source in read if os.path.isdir(path) else ():
            if _identity(path) in _places_above(source):
                raise InputError(
                    f"{name} must not be a folder that holds {other}, got {quoted(path)}. "
                    "What is read would be lost; choose another name."
                )
    for other, folder in read:
        if os.path.isdir(folder):
            _expect_outside(replaced, other, folder)


def _expect_outside(outputs: dict[str, str], other: str, folder: str) -> None:
    """Raise if an existing output is among the files of an input folder."""
    wanted = {
        _identity(path): (name, path)
        for name, path in outputs.items()
        if os.path.splitext(path)[1].lower() not in DRAWN
    }
    for place, _, names in os.walk(folder) if wanted else ():
        for inside in [place, *(os.path.join(place, name) for name in names)]:
            if _identity(inside) in wanted:
                name, path = wanted[_identity(inside)]
                raise InputError(
                    f"{name} must be another file than those in {other}, got {quoted(path)}. "
                    "What is read would be lost; choose another name."
                )


def _expect_room(name: str, path: str, overwrite: bool) -> None:
    """Raise if something is in the way, or there is no folder to write to."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if is_stream(path):
        return
    if os.path.islink(target):
        raise InputError(f"{name} must not be a link to itself, got {quoted(path)}.")
    if not os.path.isdir(folder):
        raise InputError(
            f"{name} must be in an existing folder, got {quoted(path)}. Make it first."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{name} must be in a folder that can be written, got {quoted(path)}. Choose another."
        )
    if not os.path.lexists(target):
        return
    if os.path.isdir(target) and not is_ours(target):
        raise InputError(
            f"{name} must not be a folder with files that isotropy did not write, or "
            f"that have changed since, got {quoted(path)}. Choose a new folder, or delete it first."
        )
    if not overwrite:
        how = "Add --overwrite" if name.startswith("--") else "Pass overwrite=True"
        raise InputError(f"{name} {quoted(path)} exists. {how} to replace it.")


def _read(value: Any) -> Iterator[str]:
    """The local paths of an input; a folder is one path, and so is each file of a glob."""
    if isinstance(value, (str, os.PathLike)):
        path = paths.normal(value)
        if paths.is_remote(path) or "\0" in path:
            return
        if status(path) is not None:
            yield path
        elif paths.is_pattern(path):
            yield from paths.matches(path)
    elif isinstance(value, (list, tuple)):
        if all(isinstance(one, (str, os.PathLike)) for one in value):
            for one in value:
                yield from _read(one)
    else:
        yield from _read(value.paths if isinstance(value, Source) else mapped_files(value))


def _identity(path: str) -> Identity:
    """What identifies a file, however spelled; of a new one, its folder and name in lower case."""
    found = status(path)
    if found is not None:
        return found.st_dev, found.st_ino
    folder, name = os.path.split(os.path.realpath(path))
    above = status(folder)
    plain = unicodedata.normalize("NFC", name).casefold()
    return (folder if above is None else (above.st_dev, above.st_ino)), plain


def _places_above(path: str) -> Iterator[Identity]:
    """The folders above a path."""
    for folder in Path(os.path.realpath(path)).parents:
        yield _identity(str(folder))

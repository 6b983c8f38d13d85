"""Where vectors are written: single files, or a folder of Parquet parts."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources.base import Source, narrowed, widened
from isotropy.sources.files import wide
from isotropy.sources.guard import guard, output_path
from isotropy.writing import NewFile, NewFolder, quoted, status, write_errors

if TYPE_CHECKING:
    import pyarrow as pa


SINKS = {  # suffix: (module, class)
    ".npy": ("npy", "NpySink"),
    ".parquet": ("columnar", "ParquetSink"),
    ".safetensors": ("flat", "SafetensorsSink"),
    ".txt": ("word2vec", "WordsSink"),
    ".vec": ("word2vec", "WordsSink"),
}


class Sink:
    """A file of rows that appears under its name only when it is complete.

    After an exception, an older file of that name is unchanged. Use `open_sink` to get a sink.
    """

    holds_bfloat16 = False

    def __init__(
        self,
        path: str,
        n_features: int,
        dtype: str,
        *,
        column: str | None = None,
        n_rows: int | None = None,
        overwrite: bool = False,
        may_be_empty: bool = False,
    ) -> None:
        self.path = self.told = path
        self.overwrite = overwrite
        self.may_be_empty = may_be_empty
        self.n_features = n_features
        self.dtype = self._storable(dtype)
        self.column = column
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
        if kind is not None or (self.may_be_empty and not self.n_rows):
            self._discard()
            return
        try:
            if not self.n_rows:
                raise InputError(f"there are no rows to write to {quoted(self.told)}.")
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

    def _storable(self, dtype: str) -> str:
        """The dtype in the file: floats stay, integers become the floats they are computed in."""
        if dtype in ("float16", "float32", "float64") or (
            dtype == "bfloat16" and self.holds_bfloat16
        ):
            return dtype
        return "float64" if wide(dtype) else "float32"

    def _cast(self, rows: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            narrow = self.dtype == "bfloat16"
            cast = narrowed(rows) if narrow else rows.astype(self.dtype, copy=False)
            values = widened(cast) if narrow else cast
        if values is not rows:
            checks.fits(values, rows, self.dtype, self.n_rows)
        return cast

    def _write_errors(self) -> contextlib.AbstractContextManager[None]:
        return write_errors(self.told, f" after {self.n_rows} rows")


def open_sink(
    path: str | os.PathLike[str],
    n_features: int,
    dtype: str | None = None,
    like: Source | None = None,
    *,
    overwrite: bool = False,
    name: str = "out",
) -> Sink:
    """The sink of a path: a context manager with `write(rows, carried=None)`, in order.

    Parameters
    ----------
    path : path
        Must end in .npy, .parquet, .safetensors, .vec or .txt. Only Parquet keeps all other
        columns; word2vec's text keeps the words.
    n_features : int
    dtype : str, optional
        By default that of `like`, otherwise float32. Floats are kept, except that bfloat16
        becomes float32 outside safetensors; integers become float32 or float64.
    like : Source, optional
        Source of the rows; Parquet keeps the name of its column.
    overwrite : bool
        Replace the file if it exists.
    name : str
        The name of the path in messages.
    """
    target = output_path(path, name)
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in SINKS:
        raise InputError(f"{name} must end in one of {', '.join(SINKS)}, got {quoted(target)}.")
    if os.path.isdir(target):
        raise InputError(f"{name} must be a file, got the folder {quoted(target)}.")
    guard({name: path}, {"X": like}, overwrite=overwrite)
    module, kind_name = SINKS[suffix]
    kind: type[Sink] = getattr(importlib.import_module(f"isotropy.sources.{module}"), kind_name)
    return kind(
        target,
        n_features,
        dtype or ("float32" if like is None else like.dtype),
        column=None if like is None else like.column,
        n_rows=None if like is None else like.n_samples,
        overwrite=overwrite,
    )


class PartsSink:
    """A folder that appears under its name only when all its parts are complete.

    Inside `with`, `part(i)` is the sink of part i, in other processes too: this object pickles as
    plain values. A part that is written twice because a worker was lost is replaced. A part
    without rows leaves no file.

    Parameters
    ----------
    path : path
        Of the folder.
    n_features, dtype, like, name
        As for `open_sink`.
    overwrite : bool
        Replace the folder if it exists; it must hold nothing but such parts.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_features: int,
        dtype: str | None = None,
        like: Source | None = None,
        *,
        overwrite: bool = False,
        name: str = "out",
    ) -> None:
        self.path = output_path(path, name)
        if status(self.path) is not None and not os.path.isdir(self.path):
            raise InputError(
                f"{name} without a suffix must be a folder, got the file "
                f"{quoted(self.path)}. Choose another name."
            )
        guard({name: path}, {"X": like}, overwrite=overwrite)
        self.folder = NewFolder(self.path, overwrite)
        self.n_features = n_features
        self.dtype = dtype or ("float32" if like is None else like.dtype)
        self.column = None if like is None else like.column
        self.n_written = 0

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows as a part of their own."""
        with self.part(self.n_written) as part:
            part.write(rows, carried)
        self.n_written += 1

    def part(self, number: int) -> Sink:
        """The sink of one part, whose rows follow those of the part before."""
        from isotropy.sources.columnar import ParquetSink

        sink = ParquetSink(
            os.path.join(self.folder.part, f"part-{number:05d}.parquet"),
            self.n_features,
            self.dtype,
            column=self.column,
            overwrite=True,  # two workers may write the same part
            may_be_empty=True,
        )
        sink.told = self.path
        return sink

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
                self._finish()
        finally:
            self.folder.discard()

    def _finish(self) -> None:
        if all(name.startswith(".") for name in os.listdir(self.folder.part)):
            raise InputError(f"there are no rows to write to {quoted(self.path)}.")
        with write_errors(self.path):
            self.folder.finish()

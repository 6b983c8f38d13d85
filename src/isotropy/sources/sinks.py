"""Where vectors go: files that are written in order, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources import paths
from isotropy.sources.base import Source
from isotropy.sources.files import wide
from isotropy.sources.flat import narrowed

if TYPE_CHECKING:
    import pyarrow as pa


SINKS = {  # suffix: (module, class)
    ".npy": ("npy", "NpySink"),
    ".parquet": ("columnar", "ParquetSink"),
    ".safetensors": ("safetensors", "SafetensorsSink"),
    ".txt": ("word2vec", "WordsSink"),
    ".vec": ("word2vec", "WordsSink"),
}


class Sink:
    """A file of rows that takes its name only when it is whole.

    Until then the rows are in `<name>.part` beside it; any exception removes that and leaves
    what had the name before. Use `open_sink` to get the sink of a path.
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
        caller: str = "isotropy",
        part: str | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self.path = path
        self.part = part or path + ".part"
        self.may_be_empty = may_be_empty
        self.n_features = n_features
        self.dtype = self._storable(dtype)
        self.column = column
        self.expected_rows = n_rows
        self.caller = caller
        self.n_rows = 0

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows, with their other columns where the format has room for them."""
        rows = linalg.to_numpy(rows)
        checks.n_features(rows, self.n_features, self.caller)
        if not len(rows):
            return
        with self._explained():
            self._write(self._cast(rows), carried)
        self.n_rows += len(rows)

    def __enter__(self) -> Self:
        with self._explained():
            self.file: IO[bytes] = open(self.part, "wb")
        try:
            with self._explained():
                self._begin()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or (self.may_be_empty and not self.n_rows):
            self._discard()
            return
        try:
            if not self.n_rows:
                raise InputError(f"{self.caller}: there are no rows to write to {self.path!r}.")
            with self._explained():
                self._finish()
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                os.replace(self.part, self.path)
                sync_folder(os.path.dirname(self.path))
        except BaseException:
            self._discard()
            raise

    def _begin(self) -> None:
        """Write what comes before the rows."""

    def _write(self, rows: NDArray[Any], carried: pa.Table | None) -> None:
        self.file.write(np.ascontiguousarray(rows).data)

    def _finish(self) -> None:
        """Write what comes after the rows, or correct what came before."""

    def _abandon(self) -> None:
        """Let go of what would still write to the file."""

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            self._abandon()
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.part)

    def _storable(self, dtype: str) -> str:
        """The dtype that the file gets: floats stay, integers become what they computed as."""
        if dtype in ("float16", "float32", "float64") or (
            dtype == "bfloat16" and self.holds_bfloat16
        ):
            return dtype
        return "float64" if wide(dtype) else "float32"

    def _cast(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self.dtype == "bfloat16":
            return narrowed(rows)
        with np.errstate(over="ignore"):
            cast = rows.astype(self.dtype, copy=False)
        if cast.dtype == np.float16 and np.isinf(cast).any():
            raise InputError(
                f"{self.caller}: values must fit float16 to be written like the input, got "
                f"{np.abs(rows).max():g}. Choose another dtype, such as 'float32'."
            )
        return cast

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else error.strerror or str(error)
            fix = "Free some room" if full else "Check the folder"
            raise InputError(
                f"{self.caller}: {self.path!r} could not be written after {self.n_rows} rows: "
                f"{reason}. {fix}, or write elsewhere; nothing was changed."
            ) from None


def open_sink(
    path: str | os.PathLike[str],
    n_features: int,
    dtype: str | None = None,
    like: Source | None = None,
    caller: str = "isotropy",
) -> Sink:
    """The sink of a path: a context manager with `write(rows, carried=None)`, in order.

    Parameters
    ----------
    path : path
        Ends in .npy, .parquet, .safetensors, .vec or .txt. Only Parquet keeps all carried
        columns, and word2vec's text the words.
    n_features : int
    dtype : str, optional
        By default that of `like`, otherwise float32. Floats are kept, except that bfloat16
        becomes float32 outside safetensors; integers become float32 or float64.
    like : Source, optional
        Where the rows come from: the name of its column is kept in Parquet.
    caller : str
        Name that error messages begin with.
    """
    target = paths.normal(path)
    suffix = os.path.splitext(target)[1].lower()
    if paths.is_remote(target):
        raise InputError(f"{caller}: {target!r} must be a local file. Write here, then copy it.")
    if suffix not in SINKS:
        raise InputError(
            f"{caller}: {target!r} must end in one of {', '.join(SINKS)}, got {suffix!r}."
        )
    if not os.path.isdir(os.path.dirname(target)) or os.path.isdir(target):
        raise InputError(f"{caller}: {target!r} must be a file in an existing folder.")
    module, name = SINKS[suffix]
    kind: type[Sink] = getattr(importlib.import_module(f"isotropy.sources.{module}"), name)
    return kind(
        target,
        n_features,
        dtype or str(getattr(like, "dtype", "float32")),
        column=getattr(like, "column", None),
        n_rows=None if like is None else like.n_samples,
        caller=caller,
    )


def sync_folder(path: str) -> None:
    """Make renames in a folder last, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""A folder of Parquet files, written chunk by chunk, in any order and by any process."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.sources.base import Source
from isotropy.sources.guard import guard, output_path
from isotropy.sources.sinks import Sink
from isotropy.writing import NewFolder, explained, shown, status

if TYPE_CHECKING:
    import pyarrow as pa


class PartsSink:
    """A folder that takes its name only when all its parts are there.

    Inside `with`, `part(i)` gives the sink of part i; it works in another process too, since
    this object pickles as plain values. A part that is written twice, because a worker was
    lost, is the same part. A part without rows leaves no file.

    Parameters
    ----------
    path : path
        Of the folder.
    n_features, dtype, like, caller, name
        As for `open_sink`.
    overwrite : bool
        Replace a folder that is there, which must hold such parts and nothing else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_features: int,
        dtype: str | None = None,
        like: Source | None = None,
        caller: str = "isotropy",
        *,
        overwrite: bool = False,
        name: str = "out",
    ) -> None:
        self.path = output_path(path, name, caller)
        if status(self.path) is not None and not os.path.isdir(self.path):
            raise InputError(
                f"{caller}: {name} without a suffix must be a folder, got the file "
                f"{shown(self.path)}. Choose another name."
            )
        guard({name: path}, {"X": like}, overwrite=overwrite, caller=caller)
        self.folder = NewFolder(self.path, overwrite)
        self.n_features = n_features
        self.dtype = dtype or str(getattr(like, "dtype", "float32"))
        self.column: str | None = getattr(like, "column", None)
        self.caller = caller
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
            caller=self.caller,
            overwrite=True,  # two workers may be at the same part
            may_be_empty=True,
        )
        sink.told = self.path
        return sink

    def __enter__(self) -> Self:
        try:
            with explained(self.path, self.caller):
                self.folder.begin()
        except BaseException:
            self.folder.discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self.folder.discard()

    def _finish(self) -> None:
        if all(name.startswith(".") for name in os.listdir(self.folder.part)):
            raise InputError(f"{self.caller}: there are no rows to write to {shown(self.path)}.")
        with explained(self.path, self.caller):
            self.folder.finish()

"""A folder of Parquet files, written chunk by chunk, in any order and by any process."""

from __future__ import annotations

import glob
import os
import shutil
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Self

from isotropy.checks import Array
from isotropy.errors import InputError, reason
from isotropy.sources import paths
from isotropy.sources.base import Source
from isotropy.sources.sinks import Sink, sync_folder

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
        Of the folder; what is there already must be such a folder, and is replaced at the end.
    n_features, dtype, like, caller
        As for `open_sink`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_features: int,
        dtype: str | None = None,
        like: Source | None = None,
        caller: str = "isotropy",
    ) -> None:
        self.path = paths.normal(path)
        self.temporary = self.path + ".part"
        self.n_features = n_features
        self.dtype = dtype or str(getattr(like, "dtype", "float32"))
        self.column: str | None = getattr(like, "column", None)
        self.caller = caller
        self.n_written = 0
        if paths.is_remote(self.path) or not os.path.isdir(os.path.dirname(self.path)):
            raise InputError(f"{caller}: {self.path!r} must be in an existing local folder.")
        if not self._replaceable(self.path):
            raise InputError(
                f"{caller}: {self.path!r} is there and holds other things than parts. Choose a "
                "new folder."
            )

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows as a part of their own."""
        with self.part(self.n_written) as part:
            part.write(rows, carried)
        self.n_written += 1

    def part(self, number: int) -> Sink:
        """The sink of one part, whose rows follow those of the part before."""
        from isotropy.sources.columnar import ParquetSink

        path = os.path.join(self.temporary, f"part-{number:05d}.parquet")
        return ParquetSink(
            path,
            self.n_features,
            self.dtype,
            column=self.column,
            caller=self.caller,
            part=f"{path}.{uuid.uuid4().hex}.part",  # two workers may be at the same part
            may_be_empty=True,
        )

    def __enter__(self) -> Self:
        if not self._replaceable(self.temporary):
            raise InputError(
                f"{self.caller}: {self.temporary!r} is there and not of an earlier run. Move it."
            )
        shutil.rmtree(self.temporary, ignore_errors=True)
        try:
            os.mkdir(self.temporary)
        except OSError as error:
            raise InputError(
                f"{self.caller}: {self.path!r} could not be written: {reason(error)}."
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._rename()
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _rename(self) -> None:
        for leftover in glob.glob(os.path.join(glob.escape(self.temporary), "*.part")):
            os.unlink(leftover)
        if not os.listdir(self.temporary):
            raise InputError(f"{self.caller}: there are no rows to write to {self.path!r}.")
        sync_folder(self.temporary)
        old = f"{self.path}.old.{uuid.uuid4().hex}.part"
        if os.path.isdir(self.path):
            os.rename(self.path, old)
        try:
            os.rename(self.temporary, self.path)
        except BaseException:
            if os.path.isdir(old):
                os.rename(old, self.path)
            raise
        sync_folder(os.path.dirname(self.path))
        shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _replaceable(path: str) -> bool:
        """Whether nothing is there, or nothing but parts, whole or begun."""
        if not os.path.lexists(path):
            return True
        if not os.path.isdir(path):
            return False
        return all(name.startswith("part-") and ".parquet" in name for name in os.listdir(path))

"""What tables of all databases share: how they are read, and how a column is written beside them.

Writing goes chunk by chunk. With each chunk the database records how far the work is, in the same
step, so that an interrupted run resumes after the last complete chunk.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import secrets
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, MissingExtraError, brief
from isotropy.sources.addresses import Address
from isotropy.sources.base import PICKED_ELEMENTS, Batch, Chunk, Source
from isotropy.sources.files import Column, File, FileSource, Matrix
from isotropy.sources.sinks import Sink
from isotropy.stored import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "isotropy"  # under which a database records what we wrote


def imported(package: str, extra: str, what: str) -> Any:
    """The client of a database, which an extra brings."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f'{what} needs {package}, which is not installed. Run: pip install "isotropy[{extra}]".'
        ) from error


@dataclass(frozen=True, kw_only=True)
class Table(File):
    """A column of vectors in a table, read by key like a file by row.

    `mark` identifies the rows as they were when the table was opened, and `beside` what is in their
    other columns, if that may change while the rows stay the same.
    """

    address: Address
    mark: tuple[int, int]
    beside: int = 0

    @property
    def rows_at_once(self) -> int:
        return self.chunk_rows or max(1, PICKED_ELEMENTS // self.n_features)

    def now(self) -> tuple[int, ...]:
        return self.mark

    def checksum(self, rows: Matrix) -> int:
        return zlib.crc32(np.ascontiguousarray(rows).tobytes())


def mark_of(values: object, n_rows: int) -> tuple[int, int]:
    """The mark of a table, from plain values that change with its rows."""
    return zlib.crc32(json.dumps(values, default=str).encode()), n_rows


def open_table(
    address: Address, column: Column, chunk_rows: int | None, **options: Any
) -> FileSource:
    """The source of a column of vectors, which is named in the URL or beside it."""
    if column is not None and not isinstance(column, str):
        raise InputError(f"column must be one name for a table, got {brief(column)}.")
    if column is not None and address.column not in (None, column):
        raise InputError(
            f"column must be the one of the URL, {address.column!r}, got {brief(column)}. Leave "
            "one of them out."
        )
    address = dataclasses.replace(address, column=address.column or column)
    opener = importlib.import_module(f"isotropy.sources.{address.kind}")
    table: Table = opener.open_table(address, chunk_rows)
    if not table.n_rows or not table.n_features:
        raise InputError(f"{str(address)!r} holds no vectors.")
    return FileSource([table], asked=address.column, **options)


def table_of(source: Source | None) -> Table | None:
    """The table that a source reads; None if it reads something else."""
    table = source.files[0] if isinstance(source, FileSource) else None
    return table if isinstance(table, Table) else None


@dataclass(frozen=True)
class Progress:
    """How far a job is: rows of its source dealt with, and how many of them were left out.

    `checksum` is that of the vectors as they were read, in chunks that are done.
    """

    job: str
    n_done: int = 0
    n_skipped: int = 0
    complete: bool = False
    checksum: int = 0

    def __str__(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: object) -> Progress | None:
        """What str() wrote; None for anything else."""
        try:
            found = parse_json(text) if isinstance(text, str) else {}
            return cls(**found) if isinstance(found, dict) and "job" in found else None
        except (InputError, TypeError):
            return None


class DatabaseSink(Sink, ABC):
    """A column of vectors in a database: beside the one that was read, or in a table of its own.

    A database defines `begin`, which returns the progress of the same job if it was interrupted,
    `put` for rows, `save` for progress after each chunk, `finish` and `close`.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("float16", "float32")
    progress: Progress
    checksum: int

    def __init__(
        self,
        address: Address,
        n_features: int,
        dtype: str | None,
        like: Source | None,
        name: str,
        job: str,
        overwrite: bool,
    ) -> None:
        self.address, self.name, self.like = address, name, like
        self.read = table_of(like)
        self.apart = self.read is None
        dtype = dtype or ("float32" if like is None else like.dtype)
        super().__init__(
            str(address),
            n_features,
            dtype if dtype in self.dtypes else self.dtypes[-1],
            column=address.column or (None if like is None else like.column) or "embedding",
            overwrite=overwrite,
        )
        identity = None if like is None else like.identity()
        chunks = [] if like is None else [chunk.n_rows for chunk in like.chunks()]
        form = [n_features, self.dtype, self.column, address.key]
        if self.carries and self.read is not None and self.read.beside:
            form.append(self.read.beside)
        plain = json.dumps([job, identity, form, chunks], sort_keys=True, default=str)
        named = identity is not None and job
        self.job = f"{zlib.crc32(plain.encode()):08x}" if named else secrets.token_hex(8)
        self.is_trial = not job  # only asks whether there is room; the work is not known yet
        self.has_begun = False

    @property
    def vectors(self) -> str | None:
        return self.column

    @abstractmethod
    def begin(self) -> Progress: ...

    @abstractmethod
    def put(self, rows: NDArray[Any], batch: Batch) -> None: ...

    @abstractmethod
    def save(self, progress: Progress) -> None: ...

    @abstractmethod
    def finish(self, progress: Progress) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def write(self, rows: Array, carried: pa.Table | None = None) -> None:
        """Append rows as a chunk of their own."""
        first = self.progress.n_done
        self.write_batch(Batch(first, rows, carried=carried))
        self.commit(Chunk(first, rows.shape[0]), 0)

    def write_batch(self, batch: Batch) -> None:
        rows = linalg.to_numpy(batch.rows)
        checks.width(rows.shape[1], self.n_features)
        self.put(self._cast(rows), batch)
        self.n_rows += len(rows)
        self.checksum = _folded(self.checksum, batch)

    def commit(self, chunk: Chunk, n_skipped: int) -> None:
        self.progress = dataclasses.replace(
            self.progress,
            n_done=chunk.first_row + chunk.n_rows,
            n_skipped=self.progress.n_skipped + n_skipped,
            checksum=self.checksum,
        )
        self.save(self.progress)

    def __enter__(self) -> Self:
        self.is_trial, self.has_begun = False, True
        try:
            self.progress = self.begin()
        except BaseException:
            self.close()
            raise
        self.checksum = self.progress.checksum
        self.n_done, self.n_skipped = self.progress.n_done, self.progress.n_skipped
        self.n_rows = self.n_done - self.n_skipped
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if not self.n_rows:
                    raise InputError(f"there are no rows to write to {self.path!r}.")
                self.finish(dataclasses.replace(self.progress, complete=True))
        finally:
            self.close()

    def resumes(self, found: Progress) -> bool:
        """Whether this is an interrupted run of the same job, whose vectors are still the same.

        Those that were done are read again if only their checksum can tell. Otherwise the identity
        of the source has told, which is part of the job.
        """
        if found.complete or found.job != self.job:
            return False
        if not (self.has_begun and found.checksum and self.like is not None):
            return True
        source, checksum = self.like.bare(), 0
        for chunk in source.chunks():
            if chunk.first_row + chunk.n_rows <= found.n_done:
                for batch in source.read(chunk):
                    checksum = _folded(checksum, batch)
        return checksum == found.checksum

    def expect_room(self, what: str, found: Progress | None, ours: bool = True) -> Progress | None:
        """The progress to resume from; None to begin anew, replacing what is there.

        Raises if something else is there, or if it is complete and must not be replaced.
        """
        how = "Add --overwrite" if self.name.startswith("--") else "Pass overwrite=True"
        if found is None or not ours:
            raise InputError(
                f"{self.name} must be new, got {what}, which isotropy did not write. Choose "
                "another name."
            )
        if self.resumes(found):
            return found
        if self.overwrite:
            return None
        if found.complete:
            raise InputError(f"{self.name}: {what} exists. {how} to replace it.")
        if self.is_trial:
            return found
        raise InputError(
            f"{self.name}: {what} is incomplete, and was begun with another repair or with vectors "
            f"that have changed since. Repeat that command to finish it. {how} to begin again."
        )

    def numbers(self, batch: Batch) -> NDArray[np.int64]:
        """The row numbers of a batch in its source."""
        if batch.numbers is not None:
            return batch.numbers
        return batch.first_row + np.arange(batch.rows.shape[0], dtype=np.int64)

    def expect_other_column(self, same_table: bool) -> None:
        """Raise if the column is the one that is read."""
        if same_table and self.read is not None and self.read.column == self.column:
            raise InputError(
                f"{self.name} must be another column than the one that is read, got "
                f"{self.column!r} for both. Name a new one, such as column={self.column}_repaired."
            )


def _folded(checksum: int, batch: Batch) -> int:
    """The checksum of rows up to the end of a batch, if it has one of its own."""
    if not batch.checksum:
        return checksum
    return zlib.crc32(batch.checksum.to_bytes(4, "big"), checksum)


def expect_complete(address: Address, what: str, found: Progress | None) -> None:
    """Raise if a column that is to be read was not finished."""
    if found is not None and not found.complete:
        raise InputError(
            f"{what} of {str(address)!r} is incomplete: {found.n_done:,} rows were dealt with "
            "before its writer stopped. Repeat the command that writes it."
        )

"""Tables of LanceDB, which are folders of Lance files."""

from __future__ import annotations

import json
import os
import queue
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy.errors import InputError, one_line
from isotropy.sources.addresses import Address
from isotropy.sources.base import CHUNK_BYTES, Batch, Source
from isotropy.sources.columnar import Layout, carried, choose, matrix, width
from isotropy.sources.databases import (
    MARK,
    DatabaseSink,
    Progress,
    Table,
    imported,
    mark_of,
    table_of,
)
from isotropy.sources.files import FormatError, Matrix, Pieces, Place, listed, read_errors
from isotropy.writing import atomic_write, lock_folder, replace_folder

AHEAD = 2  # batches that wait to be written
PATIENCE = 1.0  # seconds after which a writer that has failed is noticed


@dataclass(frozen=True, kw_only=True)
class LanceTable(Table):
    """A table at one version, in pieces that do not cross its fragments."""

    kind: str = "Lance"
    layout: Layout
    version: int
    fragments: tuple[tuple[int, int], ...]  # (id, rows)

    def checksum(self, rows: Matrix) -> int:
        return 0  # a version never changes, and `mark` tells versions apart

    def pieces(self) -> list[tuple[int, Place]]:
        step = self.rows_at_once
        return [
            (min(step, n_rows - start), (fragment, start))
            for fragment, n_rows in self.fragments
            for start in range(0, n_rows, step)
        ]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        with _errors(self.path):
            dataset = _lance().dataset(_folder(self.address), version=self.version)
            columns = None if carry else self.layout.top_level(dataset.schema.names)
            number, start = place
            for batch in dataset.get_fragment(number).to_batches(
                columns=columns, batch_size=n_rows, offset=start, limit=n_rows
            ):
                yield matrix(batch, self.layout, first_row), carried(batch, self.layout)
                first_row += batch.num_rows


def open_table(address: Address, chunk_rows: int | None) -> LanceTable:
    folder = _folder(address)
    if not os.path.isdir(folder):
        there = _tables(address.server)
        raise InputError(
            f"there is no table {address.table!r} in {address.server!r}, "
            f"{'only ' + listed(there) if there else 'which holds none'}. Check the name."
        )
    with read_errors(str(address), "Lance"), _errors(str(address)):
        dataset = _lance().dataset(folder)
        layout = choose(dataset.schema, address.column)
        if layout.is_list:
            layout = replace(layout, n_features=_width(dataset, layout))
        fragments = dataset.get_fragments()
        sizes = [(fragment.fragment_id, fragment.count_rows()) for fragment in fragments]
        n_rows = sum(size for _, size in sizes)
        schema = [(field.name, str(field.type)) for field in dataset.schema]
        return LanceTable(
            path=str(address),
            address=address,
            n_rows=n_rows,
            chunk_rows=chunk_rows,
            version=dataset.version,
            fragments=tuple(size for size in sizes if size[1]),
            mark=mark_of(_files(dataset, layout.top_level(dataset.schema.names)), n_rows),
            beside=mark_of([schema, _files(dataset, dataset.schema.names)], n_rows)[0],
            **layout.fields(schema),
        )


def _width(dataset: Any, layout: Layout) -> int:
    """The length of the lists, which their type tells unless it may vary."""
    (top,) = layout.top_level(dataset.schema.names)
    kind = dataset.schema.field(top).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    return width((batch.column(0) for batch in dataset.to_batches(columns=[top])), layout)


def _files(dataset: Any, names: Sequence[str]) -> list[Any]:
    """What these columns are made of: files and deletions, but not the files of others."""
    fields = {field.id() for field in dataset.lance_schema.fields() if field.name() in names}
    return [
        [
            fragment.fragment_id,
            fragment.count_rows(),
            [file.path for file in fragment.metadata.files if fields & set(file.fields)],
        ]
        for fragment in dataset.get_fragments()
    ]


def _tables(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name.removesuffix(".lance") for name in names if name.endswith(".lance")]


def _folder(address: Address) -> str:
    return os.path.join(address.server, f"{address.table}.lance")


def _lance() -> Any:
    return imported("lance", "lancedb", "a Lance table")


@contextmanager
def _errors(shown: str, after: str = "read") -> Iterator[None]:
    """Turn what Lance raises into one line; it has no exceptions of its own."""
    try:
        yield
    except (InputError, FormatError):
        raise
    except (OSError, RuntimeError, ValueError) as error:
        why = str(error).partition(", /")[0].removeprefix("LanceError")
        raise InputError(
            f"{shown!r} could not be {after} ({one_line(why, 200)}). Check the table."
        ) from error


def open_sink(
    address: Address,
    n_features: int,
    dtype: str | None,
    like: Source | None,
    name: str,
    job: str,
    overwrite: bool,
) -> DatabaseSink:
    """The sink of a new column if the table is the one that is read, else of a new table."""
    folder = _folder(address)
    read = table_of(like)
    beside = isinstance(read, LanceTable) and _same(_folder(read.address), folder)
    kind = LanceColumn if beside else LanceNewTable
    return kind(address, n_features, dtype, like, name, job, overwrite)


def _same(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


class LanceSink(DatabaseSink):
    """What runs to a column and to a table share: one at a time, in folders of this machine."""

    dtypes = ("float16", "float32", "float64")
    lock: int | None = None

    def _lock(self, folder: str) -> None:
        try:
            self.lock = lock_folder(folder)
        except BlockingIOError as error:
            raise InputError(
                f"{self.name}: another run is writing to {self.path!r}. Repeat the command when it "
                "has ended."
            ) from error

    def _unlock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _lists(self, rows: NDArray[Any]) -> pa.FixedSizeListArray:
        values = pa.array(np.ascontiguousarray(rows).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, self.n_features)

    @property
    def _type(self) -> pa.DataType:
        return pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)), self.n_features)


class LanceColumn(LanceSink):
    """A new column of the table that is read.

    The files of each fragment are written as its rows arrive, and listed in a file beside them when
    they are complete. The column appears with one commit, after the last fragment. One that is to
    be replaced stays until then: the new one is added as `part`, and then exchanges names with it,
    which makes it `old`. A run that was interrupted after that only drops it.
    """

    carries = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.read, LanceTable)
        self.expect_other_column(True)
        self.folder = _folder(self.address)
        self.state = os.path.join(self.folder, "_isotropy", f"{self.column}.json")
        self.ends = np.cumsum([size for _, size in self.read.fragments]).tolist()
        self.part, self.old = f"{self.column}-isotropy-part", f"{self.column}-isotropy-old"
        self.open: Fragment | None = None
        self._look()

    def _look(self) -> Progress | None:
        """Open the table; raise if its column must stay.

        Returns the progress of the same job if it was interrupted when the column had its name.
        """
        with _errors(self.path):
            self.dataset = _lance().dataset(self.folder)
        schema, saved = self.dataset.schema, _saved(self.state) or {}
        if self.column not in schema.names:
            return None
        job = (schema.field(self.column).metadata or {}).get(MARK.encode())
        found = None if job is None else Progress("", complete=True)
        if job == self.job.encode() and saved.get("job") == self.job and "whole" in saved:
            found = Progress(self.job, *saved["whole"])
        return self.expect_room(f"the column {self.column!r} of {self.path!r}", found)

    def begin(self) -> Progress:
        assert isinstance(self.read, LanceTable)
        self._lock(self.folder)
        whole = self._look()
        with _errors(self.path, "written"):
            names = self.dataset.schema.names
            vectors = _files(self.dataset, self.read.layout.top_level(names))
            if mark_of(vectors, self.read.n_rows) != self.read.mark:
                raise InputError(f"{self.path!r} has changed since it was opened. Open it again.")
            saved = _saved(self.state) or {}
            self.made = self.part if self.column in names and whole is None else self.column
            same = saved.get("job") == self.job and saved["made"] == self.made
            if whole is None and same and self.made in names:  # it only lacks its name
                whole, names = Progress(self.job, *saved["whole"]), []
            if left := [name for name in (self.part, self.old) if name in names]:
                self.dataset.drop_columns(left)
                self.dataset = _lance().dataset(self.folder)
            if whole is not None:
                return whole
            self.kept = {"job": self.job, "made": self.made, "version": self.dataset.version}
            self.kept |= {"n_done": 0, "n_skipped": 0, "fragments": []}
            if same and saved["version"] == self.dataset.version:
                self.kept = saved
            return Progress(self.job, self.kept["n_done"], self.kept["n_skipped"])

    def put(self, rows: NDArray[Any], batch: Batch) -> None:
        assert isinstance(self.read, LanceTable)
        if self.open is None:
            number = next(
                fragment
                for (fragment, _), end in zip(self.read.fragments, self.ends, strict=True)
                if batch.first_row < end
            )
            field = pa.field(self.made, self._type, metadata={MARK: self.job})
            self.open = Fragment(self.dataset.get_fragment(number), pa.schema([field]))
        lists: Any = self._lists(rows)
        if batch.n_skipped:  # they are there, and have no vector
            places = np.full(len(rows) + batch.n_skipped, -1)
            places[self.numbers(batch) - batch.first_row] = np.arange(len(rows))
            lists = lists.take(pa.array(places, mask=places < 0))
        with _errors(self.path, "written"):
            self.open.write(lists)

    def save(self, progress: Progress) -> None:
        if self.open is None or progress.n_done not in self.ends:
            return
        with _errors(self.path, "written"):
            metadata, self.schema = self.open.finish()
        self.open = None
        fragments = [*self.kept["fragments"], metadata.to_json()]
        done = progress.n_done, progress.n_skipped
        if progress.n_done == self.ends[-1]:  # the schema is at hand only after a fragment, so that
            self.last = fragments  # this one is never skipped
            self.kept |= {"whole": done}
        else:
            self.kept |= {"n_done": done[0], "n_skipped": done[1], "fragments": fragments}
        _save(self.state, self.kept)

    def finish(self, progress: Progress) -> None:
        with _errors(self.path, "written"):
            if self.made not in self.dataset.schema.names:
                self._add()
            if self.made != self.column:
                swap = {self.column: self.old, self.made: self.column}
                self.dataset.alter_columns(*({"path": a, "name": b} for a, b in swap.items()))
                self.dataset.drop_columns([self.old])
        with suppress(OSError):
            os.unlink(self.state)
            os.rmdir(os.path.dirname(self.state))

    def _add(self) -> None:
        """Add the column in one commit."""
        lance = _lance()
        read = {fragment.fragment_id: fragment for fragment in self.dataset.get_fragments()}
        fragments = [lance.FragmentMetadata.from_json(json.dumps(one)) for one in self.last]
        empty = read.keys() - {fragment.id for fragment in fragments}
        fragments += [read[number].metadata for number in empty]
        self.dataset = lance.LanceDataset.commit(
            self.folder,
            lance.LanceOperation.Merge(sorted(fragments, key=lambda f: f.id), self.schema),
            read_version=self.dataset.version,
        )

    def close(self) -> None:
        if self.open is not None:
            self.open.stop()
            self.open = None
        self._unlock()


class Fragment:
    """The files of a column for one fragment, which Lance writes in a thread as rows arrive."""

    def __init__(self, fragment: Any, schema: pa.Schema) -> None:
        self.schema = schema
        self.waiting: queue.Queue[Any] = queue.Queue(AHEAD)
        self.threads = ThreadPoolExecutor(1)
        reader = pa.RecordBatchReader.from_batches(schema, self._batches())
        self.result: Future[Any] = self.threads.submit(fragment.merge_columns, reader)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (lists := self.waiting.get()) is not None:
            if isinstance(lists, BaseException):
                raise lists
            yield pa.record_batch([lists], schema=self.schema)

    def write(self, lists: pa.Array | None) -> None:
        while True:
            try:
                return self.waiting.put(lists, timeout=PATIENCE)
            except queue.Full:
                if self.result.done():
                    self.result.result()
                    raise

    def finish(self) -> Any:
        """The metadata of the fragment, and the schema of the table with the column."""
        self.write(None)
        with self.threads:
            return self.result.result()

    def stop(self) -> None:
        """Give up: the reader ends with an error, and no metadata is made."""
        self.result.cancel()
        while not self.result.done():
            try:
                self.waiting.put(InterruptedError("stopped"), timeout=PATIENCE)
                break
            except queue.Full:
                continue
        self.threads.shutdown()


class LanceNewTable(LanceSink):
    """A table of its own, which gets its name when it is complete.

    It has its progress with it until there is nothing left to do.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.folder = _folder(self.address)
        self.part = os.path.join(self.address.server, f".{self.address.table}.isotropy-part")
        self.state = os.path.join(self.part, "_isotropy", "table.json")
        _lance()
        self._expect_replaceable()

    def _expect_replaceable(self) -> Progress | None:
        """Raise if there is a table of that name which must stay.

        Returns the progress of the same job if it was interrupted when the table had its name.
        """
        if not os.path.exists(self.folder):
            return None
        found = Progress("", complete=True) if self._is_ours(self.folder) else None
        saved = _saved(os.path.join(self.folder, "_isotropy", "table.json")) or {}
        named = Progress.parse(saved.get("progress"))
        if found is not None and named is not None and named.job == self.job:
            found = named
        return self.expect_room(
            f"the table {self.address.table!r} of {self.address.server!r}", found
        )

    def _is_ours(self, folder: str) -> bool:
        with _errors(self.path):
            return MARK.encode() in (_lance().dataset(folder).schema.metadata or {})

    def begin(self) -> Progress:
        self._lock(self.part)
        self.parts: list[pa.Table] = []
        self.named = self._expect_replaceable()  # another run may have just made it
        if self.named is not None:
            return self.named
        saved = _saved(self.state) or {}
        found = Progress.parse(saved.get("progress"))
        self.exists = found is not None and self.resumes(found)
        if found is None or not self.exists:
            for entry in os.scandir(self.part):
                (shutil.rmtree if entry.is_dir() else os.unlink)(entry.path)
            return Progress(self.job)
        with _errors(self.path, "written"):
            dataset = _lance().dataset(self.part)
            if dataset.version != saved["version"]:  # a chunk that was not recorded
                dataset.checkout_version(saved["version"]).restore()
            self.version = _lance().dataset(self.part).version
        return found

    def put(self, rows: NDArray[Any], batch: Batch) -> None:
        others = pa.table({}) if batch.carried is None else batch.carried
        if self.column in others.column_names:
            raise InputError(
                f"there is a carried column {self.column!r} already, which is the name of the "
                "vectors. Name another with column."
            )
        columns = dict(zip(others.column_names, others.columns, strict=True))
        self.parts.append(pa.table({**columns, self.column: self._lists(rows)}))
        if sum(part.nbytes for part in self.parts) >= CHUNK_BYTES:
            self._append()

    def save(self, progress: Progress) -> None:
        self._append()
        if self.exists:
            _save(self.state, {"progress": str(progress), "version": self.version})

    def _append(self) -> None:
        """Write the rows that wait, in a version that counts once `save` has recorded it."""
        rows = pa.concat_tables(self.parts) if self.parts else None
        self.parts = []
        if rows is None or not rows.num_rows:
            return
        with _errors(self.path, "written"):
            dataset = _lance().write_dataset(
                rows.replace_schema_metadata({MARK: self.job}),
                self.part,
                mode="append" if self.exists else "create",
            )
        self.exists, self.version = True, dataset.version

    def finish(self, progress: Progress) -> None:
        if self.named is None:
            self._expect_replaceable()  # others may have made it since
            with _errors(self.path, "written"):
                if os.path.exists(self.folder):
                    replace_folder(self.part, self.folder, self._is_ours)
                else:
                    os.rename(self.part, self.folder)
        shutil.rmtree(self.part, ignore_errors=True)  # what it replaces
        shutil.rmtree(os.path.join(self.folder, "_isotropy"))

    def close(self) -> None:
        self.parts = []
        if self.lock is not None:
            with suppress(OSError):
                os.rmdir(self.part)  # if nothing was written
        self._unlock()


def _save(path: str, found: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps(found))


def _saved(path: str) -> dict[str, Any] | None:
    """What an interrupted run has recorded; None if nothing."""
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found

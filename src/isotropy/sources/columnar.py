"""Parquet, Arrow IPC and Feather: columns in groups of rows."""

from __future__ import annotations

import itertools
import mmap
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isotropy.errors import InputError
from isotropy.sources import paths
from isotropy.sources.base import default_rows
from isotropy.sources.columns import Layout, carried, choose, matrix, width
from isotropy.sources.files import Column, File, FormatError, Rows
from isotropy.sources.sinks import Sink

BUFFER = 1 << 20  # of a column that is being read, so that no column is held as a whole


@dataclass(frozen=True, kw_only=True)
class GroupedFile(File):
    """Rows in groups that the writer chose; a piece is a run of whole groups."""

    layout: Layout
    groups: tuple[int, ...]

    def pieces(self) -> list[tuple[int, tuple[int, ...]]]:
        """Runs of groups that together stay below a chunk, and larger groups by themselves."""
        found: list[tuple[int, tuple[int, ...]]] = []
        start, total = 0, 0
        for i, n_rows in enumerate(self.groups):
            if total and total + n_rows > self.rows_at_once:
                found.append((total, (start, i)))
                start, total = i, 0
            total += n_rows
        return [*found, (total, (start, len(self.groups)))]

    def read(
        self, first_row: int, n_rows: int, place: tuple[int, ...], carry: bool
    ) -> Iterator[tuple[Rows, pa.Table | None]]:
        held: list[tuple[Rows, pa.Table | None]] = []
        room = self.rows_at_once
        for batch in self.batches(range(*place), carry):
            if held and batch.num_rows > room:
                yield _joined(held)
                held, room = [], self.rows_at_once
            held.append((matrix(batch, self.layout, first_row), carried(batch, self.layout)))
            first_row += batch.num_rows
            room -= batch.num_rows
            if room <= 0:
                yield _joined(held)
                held, room = [], self.rows_at_once
        if held:
            yield _joined(held)

    @abstractmethod
    def batches(self, groups: Sequence[int], carry: bool) -> Iterator[pa.RecordBatch]:
        """The rows of groups, in batches of at most rows_at_once."""


class ParquetFile(GroupedFile):
    kind: ClassVar[str] = "Parquet"

    def batches(self, groups: Sequence[int], carry: bool) -> Iterator[pa.RecordBatch]:
        with _parquet(self.path) as file:
            schema = file.schema_arrow
            columns = None if carry or not self.others else self.layout.top_level(schema)
            rows = max(min(self.rows_at_once, 1024), self.rows_at_once // 16)  # decoding takes 5x
            yield from file.iter_batches(rows, list(groups), columns, use_threads=False)


class ArrowFile(GroupedFile):
    kind: ClassVar[str] = "Arrow"

    def batches(self, groups: Sequence[int], carry: bool) -> Iterator[pa.RecordBatch]:
        with _arrow(self.path) as (schema, found, release):
            columns = schema.names if carry else self.layout.top_level(schema)
            kept = [batch.select(columns) for batch in _picked(found, groups)]
            for batch in kept:
                batch.validate(full=True)  # lengths and offsets are the file's own claims
            table = pa.Table.from_batches(kept, kept[0].schema)
            for start in range(0, table.num_rows, self.rows_at_once):
                yield from table.slice(start, self.rows_at_once).combine_chunks().to_batches()
                release()


def open_parquet(path: str, column: Column, chunk_rows: int | None) -> File:
    with _parquet(path) as file:
        schema = file.schema_arrow
        layout = choose(schema, column)
        if layout.is_list:
            top = layout.top_level(schema)
            first = (batch.column(0) for batch in file.iter_batches(1024, columns=top))
            layout = replace(layout, n_features=width(first, layout))
        metadata = file.metadata
        groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        if min(groups, default=0) < 0:
            raise FormatError("is damaged: it claims groups of negative size. Copy it again.")
    return _grouped(ParquetFile, path, schema, layout, groups, chunk_rows)


def open_arrow(path: str, column: Column, chunk_rows: int | None) -> File:
    with _arrow(path) as (schema, batches, _):
        layout = choose(schema, column)
        groups: list[int] = []
        n_features = layout.n_features
        for batch in batches:
            if layout.is_list and not n_features and batch.num_rows:
                batch.validate()
                top = layout.top_level(schema)[0]
                n_features = width(iter([batch.column(top)]), layout)
            groups.append(batch.num_rows)
    layout = replace(layout, n_features=n_features)
    return _grouped(ArrowFile, path, schema, layout, tuple(groups), chunk_rows)


def _grouped(
    kind: type[GroupedFile],
    path: str,
    schema: pa.Schema,
    layout: Layout,
    groups: tuple[int, ...],
    chunk_rows: int | None,
) -> File:
    own = set(layout.top_level(schema))
    return kind(
        path=path,
        features=layout.names,
        others=tuple((field.name, str(field.type)) for field in schema if field.name not in own),
        n_rows=sum(groups),
        n_features=layout.n_features,
        dtype=layout.dtype,
        column=layout.name,
        chunk_rows=chunk_rows,
        layout=layout,
        groups=groups,
    )


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    source = paths.open_binary(path) if paths.is_remote(path) else path
    options: Any = {"pre_buffer": False, "page_checksum_verification": True}
    with pq.ParquetFile(source, buffer_size=BUFFER, **options) as file:
        yield file


@contextmanager
def _arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch], Callable[[], None]]]:
    """(schema, record batches, release) of an IPC file or stream.

    A local file is mapped, so that batches are passed over without reading them; `release` lets
    go of the pages that were read, which would count as resident.
    """
    with paths.open_binary(path) as file:
        source, release = file, _nothing
        if not paths.is_remote(path):
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            source = pa.BufferReader(pa.py_buffer(mapped))
            if hasattr(mmap, "MADV_DONTNEED"):
                release = partial(mapped.madvise, mmap.MADV_DONTNEED)
        magic = source.read(6)
        source.seek(0)
        if magic[:4] == b"FEA1":
            raise FormatError("is of Feather version 1. Write it again with a recent pyarrow.")
        if magic == b"ARROW1":
            with pa.ipc.open_file(source) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield reader.schema, batches, release
        else:
            with pa.ipc.open_stream(source) as reader:
                yield reader.schema, iter(reader), release


def _nothing() -> None:
    pass


def _joined(parts: list[tuple[Rows, pa.Table | None]]) -> tuple[Rows, pa.Table | None]:
    if len(parts) == 1:
        return parts[0]
    tables = [table for _, table in parts if table is not None]
    return np.concatenate([rows for rows, _ in parts]), pa.concat_tables(tables) if tables else None


def _picked(batches: Iterator[pa.RecordBatch], groups: Sequence[int]) -> list[pa.RecordBatch]:
    return list(itertools.islice(batches, groups[0], groups[-1] + 1))


class ParquetSink(Sink):
    """A column of fixed-size lists beside the carried columns."""

    writer: Any = None

    def _write(self, rows: NDArray[Any], carried: pa.Table | None) -> None:
        values = pa.array(np.ascontiguousarray(rows).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(values, self.n_features)
        table = pa.table({}) if carried is None else carried.replace_schema_metadata(None)
        name = self.column or "embedding"
        if name in table.column_names:
            raise InputError(
                f"{self.caller}: there is a carried column {name!r} already, which is the name of "
                "the vectors. Rename it."
            )
        table = pa.table({**dict(zip(table.column_names, table.columns)), name: lists})  # noqa: B905
        if self.writer is None:
            self.writer = self._writer(table.schema, name)
        try:
            table = table.select(self.writer.schema.names).cast(self.writer.schema)
        except (KeyError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"{self.caller}: carried columns must stay the same throughout ({error}). Read "
                "files with the same columns."
            ) from None
        self.writer.write_table(table, default_rows(self.n_features))

    def _writer(self, schema: pa.Schema, name: str) -> Any:
        """Compresses the carried columns only: vectors hardly shrink."""
        others = [field for field in schema.names if field != name]
        return pq.ParquetWriter(
            self.file,
            schema,
            compression={f"{name}.list.element": "none"},
            use_dictionary=others,
            write_statistics=others,
        )

    def _finish(self) -> None:
        self.writer.close()

    def _abandon(self) -> None:
        if self.writer is not None:
            self.writer.close()

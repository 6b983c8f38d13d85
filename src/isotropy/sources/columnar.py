"""Parquet, Arrow IPC and Feather files, and which of their columns are the vectors."""

from __future__ import annotations

import fnmatch
import itertools
import mmap
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isotropy.errors import InputError, brief, one_line
from isotropy.sources import paths
from isotropy.sources.base import default_rows
from isotropy.sources.files import ORIGIN, Column, File, FormatError, Matrix, Pieces, Place, listed
from isotropy.sources.sinks import CODES, FLOATS, Sink

BUFFER = 1 << 20  # bytes read at a time, so that no column is held as a whole


@dataclass(frozen=True)
class Layout:
    """One column of lists (a dotted path if it is nested), or one column for each feature."""

    names: tuple[str, ...]
    is_list: bool
    dtype: str
    n_features: int = 0

    @property
    def name(self) -> str | None:
        """Name of the column of lists, without the path to it."""
        return self.names[0].rsplit(".", 1)[-1] if self.is_list else None

    def top_level(self, columns: Iterable[str]) -> list[str]:
        """Those of a table's columns that hold the vectors."""
        there = set(columns)
        return [name if name in there else name.split(".")[0] for name in self.names]

    def fields(self, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """What follows for a file with these columns, of which each is (name, type)."""
        own = set(self.top_level(name for name, _ in columns))
        return {
            "layout": self,
            "n_features": self.n_features,
            "dtype": self.dtype,
            "column": self.name,
            "features": self.names,
            "others": tuple(column for column in columns if column[0] not in own),
        }


def choose(schema: pa.Schema, column: Column, typed: bool = True) -> Layout:
    """The layout that column names; by default the only column of lists, else all of floats.

    If types were guessed from text (`typed` is False), integers beside floats may be labels or
    features, so the choice is left to the user.
    """
    expect_different(schema.names)
    found = [item for field in schema for item in _lists(field.name, field.type)]
    expect_different([path for path, _ in found])
    lists = dict(found)
    numbers = {field.name: field.type for field in schema if _is_number(field.type)}
    if column is not None:
        return _named([column] if isinstance(column, str) else column, lists, numbers, schema)
    floats = [path for path, kind in lists.items() if pa.types.is_floating(kind)]
    vectors = floats or list(lists)
    if len(vectors) == 1:
        return Layout((vectors[0],), True, _dtype([lists[vectors[0]]]))
    if vectors:
        raise FormatError(f"has several columns of vectors: {listed(vectors)}. Choose with column.")
    names = [name for name, kind in numbers.items() if pa.types.is_floating(kind)]
    if names and not typed and len(names) < len(numbers):
        rest = [name for name in numbers if name not in names]
        raise FormatError(
            f"has whole numbers in {named(rest, schema.names)}. They may be labels or "
            "features: choose the features with column, by name or by pattern such as "
            f"{brief(names[0][:1] + '*')}."
        )
    names = names or list(numbers)
    if not names:
        raise FormatError(f"has no column of numbers or lists, only {listed(schema.names)}.")
    empty = [field.name for field in schema if pa.types.is_null(field.type)]
    if empty:
        raise FormatError(
            f"has no value in {named(empty, schema.names)}{'' if typed else ' in its first rows'}"
            ". Features may be missing there: choose the features with column, by name or by "
            f"pattern such as {brief(names[0][:1] + '*')}."
        )
    return Layout(tuple(names), False, _dtype([numbers[name] for name in names]), len(names))


def named(names: Sequence[str], there: Sequence[str]) -> str:
    """A list of columns; the first may have no name, like the index of a data frame."""
    if names[0] or there[0]:
        return listed(names, 5)
    rest = f", and in {listed(names[1:], 5)}" if names[1:] else ""
    return f"its first column, which has no name{rest}"


def _named(
    wanted: Sequence[str], lists: dict[str, Any], numbers: dict[str, Any], schema: pa.Schema
) -> Layout:
    if len(wanted) == 1 and wanted[0] in lists:
        return Layout((wanted[0],), True, _dtype([lists[wanted[0]]]))
    names: list[str] = []
    for name in wanted:
        found = [name] if name in numbers else fnmatch.filter(numbers, name)
        if not found and name in schema.names:
            raise FormatError(
                f"has {one_line(str(schema.field(name).type), 60)} in column {brief(name)}, not "
                "numbers or lists of them. Choose another with column."
            )
        if not found:
            there = list(dict.fromkeys([*schema.names, *lists]))
            raise FormatError(
                f"has no column {brief(name)}, only {listed(there)}. Choose with column."
            )
        names += found
    expect_different(names, "is asked for the column")
    return Layout(tuple(names), False, _dtype([numbers[name] for name in names]), len(names))


def expect_different(names: Sequence[str], what: str = "has the column") -> None:
    """Raise if a name occurs twice, since it is unclear which one is meant."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(f"{what} {brief(name)} twice. Give each its own name.")
        seen.add(name)


def width(arrays: Iterator[pa.Array], layout: Layout) -> int:
    """The length of the first list."""
    for array in arrays:
        lengths = pc.list_value_length(_descend(array, layout)).drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    raise FormatError(f"has nothing in column {brief(layout.names[0])}.")


def matrix(batch: pa.RecordBatch, layout: Layout, first_row: int) -> Matrix:
    """The vectors of a batch whose first row is row first_row of its file."""
    if layout.is_list:
        top = layout.top_level(batch.schema.names)[0]
        return _lists_matrix(_descend(batch.column(top), layout), layout, first_row)
    dtype = np.dtype(layout.dtype)
    rows = np.empty((batch.num_rows, layout.n_features), dtype if dtype.kind == "f" else "f8")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for j, name in enumerate(layout.names):
        rows[:, j] = columns[name].to_numpy(zero_copy_only=False)
    return rows


def carried(batch: pa.RecordBatch, layout: Layout) -> pa.Table | None:
    """The other columns of a batch, if there are any."""
    own = set(layout.top_level(batch.schema.names))
    names = [name for name in batch.schema.names if name not in own]
    return pa.Table.from_batches([batch]).select(names) if names else None


def origin_of(schema: pa.Schema) -> str:
    """How the vectors were made, as a sink wrote it; empty if that is not known."""
    return str((schema.metadata or {}).get(ORIGIN.encode(), b""), "utf-8", "replace")


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], table.schema)


def _lists_matrix(array: pa.Array, layout: Layout, first_row: int) -> Matrix:
    lengths = pc.list_value_length(array)
    wrong = pc.not_equal(lengths, layout.n_features).to_numpy(zero_copy_only=False) == True  # noqa: E712
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FormatError(
            f"has {lengths[row]} features in row {first_row + row} of column "
            f"{brief(layout.names[0])}, but {layout.n_features} in the first. Vectors must have "
            "one width: drop the others."
        )
    values = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, layout.n_features)
    if not array.null_count:
        return np.asarray(values)
    dtype = values.dtype if values.dtype.kind == "f" else np.float64
    rows = np.full((len(array), layout.n_features), np.nan, dtype)
    rows[array.is_valid().to_numpy(zero_copy_only=False)] = values
    return rows


def _descend(array: pa.Array, layout: Layout) -> pa.Array:
    """The lists inside a top-level column, one for each row."""
    kind = array.type
    nested = pa.types.is_struct(kind) or (_is_list(kind) and pa.types.is_struct(kind.value_type))
    _, *parts = layout.names[0].split(".") if nested else [""]
    for part in parts:
        if not pa.types.is_struct(array.type):
            if not pc.all(pc.equal(pc.list_value_length(array), 1), min_count=0).as_py():
                raise FormatError(
                    f"has other than one vector a row in {brief(layout.names[0])}. Write one a "
                    "line."
                )
            array = array.flatten()
        array = pc.struct_field(array, part)
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _lists(path: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """(dotted path, type of the values) of every column of numbers lists at or below a column."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _lists(f"{path}.{field.name}", field.type)
    elif _is_list(kind) and _is_number(kind.value_type):
        yield path, kind.value_type
    elif _is_list(kind) and pa.types.is_struct(kind.value_type):
        yield from _lists(path, kind.value_type)


def _is_list(kind: Any) -> bool:
    test = pa.types
    return bool(test.is_list(kind) or test.is_large_list(kind) or test.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _dtype(kinds: list[Any]) -> str:
    return str(np.result_type(*(kind.to_pandas_dtype() for kind in kinds)).name)


@dataclass(frozen=True, kw_only=True)
class GroupedFile(File):
    """Rows in groups that the writer chose; a piece is a run of complete groups."""

    layout: Layout
    groups: tuple[int, ...]

    def pieces(self) -> list[tuple[int, Place]]:
        """Runs of groups that fit in a chunk together; larger groups are on their own."""
        found: list[tuple[int, Place]] = []
        start, total = 0, 0
        for i, n_rows in enumerate(self.groups):
            if total and total + n_rows > self.rows_at_once:
                found.append((total, (start, i)))
                start, total = i, 0
            total += n_rows
        return [*found, (total, (start, len(self.groups)))]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        held: list[tuple[Matrix, pa.Table | None]] = []
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


@dataclass(frozen=True, kw_only=True)
class ParquetFile(GroupedFile):
    kind: str = "Parquet"

    def batches(self, groups: Sequence[int], carry: bool) -> Iterator[pa.RecordBatch]:
        with _parquet(self.path) as file:
            schema = file.schema_arrow
            columns = None if carry or not self.others else self.layout.top_level(schema.names)
            rows = max(min(self.rows_at_once, 1024), self.rows_at_once // 16)  # decoding takes 5x
            yield from file.iter_batches(rows, list(groups), columns, use_threads=False)


@dataclass(frozen=True, kw_only=True)
class ArrowFile(GroupedFile):
    kind: str = "Arrow"

    def batches(self, groups: Sequence[int], carry: bool) -> Iterator[pa.RecordBatch]:
        with _arrow(self.path) as (schema, found, release):
            columns = schema.names if carry else self.layout.top_level(schema.names)
            picked = itertools.islice(found, groups[0], groups[-1] + 1)
            kept = [batch.select(columns) for batch in picked]
            for batch in kept:
                batch.validate(full=True)  # lengths and offsets are the file's own claims
            table = pa.Table.from_batches(kept, kept[0].schema)
            for start in range(0, table.num_rows, self.rows_at_once):
                yield from table.slice(start, self.rows_at_once).combine_chunks().to_batches()
                release()


def open_parquet(path: str, column: Column, chunk_rows: int | None) -> File:
    with _parquet(path) as file:
        groups = _row_groups(file.metadata)
        schema = file.schema_arrow
        layout = choose(schema, column)
        if layout.is_list:
            top = layout.top_level(schema.names)
            first = (batch.column(0) for batch in file.iter_batches(1024, columns=top))
            layout = replace(layout, n_features=width(first, layout))
    return _grouped(ParquetFile, path, schema, layout, groups, chunk_rows)


def _row_groups(metadata: Any) -> tuple[int, ...]:
    """The number of rows in each row group; raises if the footer contradicts itself."""
    groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if min(groups, default=0) < 0:
        raise FormatError("is damaged: it claims groups of negative size. Copy it again.")
    if sum(groups) != metadata.num_rows:
        raise FormatError(
            f"is damaged: it claims {metadata.num_rows} rows, but {sum(groups)} in its groups. "
            "Copy it again."
        )
    return groups


def open_arrow(path: str, column: Column, chunk_rows: int | None) -> File:
    with _arrow(path) as (schema, batches, _):
        layout = choose(schema, column)
        groups: list[int] = []
        n_features = layout.n_features
        for batch in batches:
            batch.validate()  # every column: a damaged type makes others of the features
            if layout.is_list and not n_features and batch.num_rows:
                top = layout.top_level(schema.names)[0]
                n_features = width(iter([batch.column(top)]), layout)
            groups.append(batch.num_rows)
    layout = replace(layout, n_features=n_features)
    return _grouped(ArrowFile, path, schema, layout, groups, chunk_rows)


def _grouped(
    kind: type[GroupedFile],
    path: str,
    schema: pa.Schema,
    layout: Layout,
    groups: Sequence[int],
    chunk_rows: int | None,
) -> File:
    fields = layout.fields([(field.name, str(field.type)) for field in schema])
    fields["origin"] = origin_of(schema)
    n_rows = sum(groups)
    return kind(path=path, n_rows=n_rows, chunk_rows=chunk_rows, groups=tuple(groups), **fields)


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    source = paths.open_binary(path) if paths.is_remote(path) else path
    options: Any = {"pre_buffer": False, "page_checksum_verification": True}
    with pq.ParquetFile(source, buffer_size=BUFFER, **options) as file:
        yield file


@contextmanager
def _arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch], Callable[[], object]]]:
    """(schema, record batches, release) of an IPC file or stream.

    A local file is mapped, so that batches are passed over without reading them; `release` lets
    go of the pages that were read, which would count as resident.
    """
    with paths.open_binary(path) as file:
        source: Any = file
        release: Callable[[], object] = bool  # does nothing
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


def _joined(parts: list[tuple[Matrix, pa.Table | None]]) -> tuple[Matrix, pa.Table | None]:
    if len(parts) == 1:
        return parts[0]
    tables = [table for _, table in parts if table is not None]
    return np.concatenate([rows for rows, _ in parts]), pa.concat_tables(tables) if tables else None


class ParquetSink(Sink):
    """A column of fixed-size lists beside the carried columns."""

    dtypes = (*FLOATS, *CODES)
    writer: Any = None

    @property
    def vectors(self) -> str:
        return self.column or "embedding"

    def _write(self, rows: NDArray[Any], carried: pa.Table | None) -> None:
        values = pa.array(np.ascontiguousarray(rows).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(values, self.n_features)
        table = pa.table({}) if carried is None else carried.replace_schema_metadata(None)
        name = self.vectors
        if name in table.column_names:
            raise InputError(
                f"there is a carried column {name!r} already, which is the name of "
                "the vectors. Rename it."
            )
        table = pa.table({**dict(zip(table.column_names, table.columns)), name: lists})  # noqa: B905
        if self.writer is None:
            others = [field for field in table.column_names if field != name]
            self.writer = pq.ParquetWriter(
                self.file,
                table.schema.with_metadata({ORIGIN: self.origin} if self.origin else None),
                compression={f"{name}.list.element": "none"},  # vectors hardly shrink
                use_dictionary=others,
                write_statistics=others,
            )
        try:
            table = table.select(self.writer.schema.names).cast(self.writer.schema)
        except (KeyError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"carried columns must stay the same throughout ({error}). Read "
                "files with the same columns."
            ) from error
        self.writer.write_table(table, default_rows(self.n_features))

    def _finish(self) -> None:
        self.writer.close()

    def _abandon(self) -> None:
        if self.writer is not None:
            self.writer.close()

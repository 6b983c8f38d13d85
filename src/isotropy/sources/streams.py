"""Rows that come and go as streams of Arrow record batches or of JSON lines, in bounded memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from isotropy import checks
from isotropy.errors import InputError, brief
from isotropy.sources import jsonl, tables
from isotropy.sources.base import Batch, RowMap
from isotropy.sources.columnar import Layout, choose, width
from isotropy.sources.csv import text_rows
from isotropy.sources.files import Column, FormatError, Matrix, read_errors
from isotropy.sources.frames import (
    chosen,
    frame_errors,
    read_batch,
    returned,
    returned_dtype,
    with_vectors,
)
from isotropy.sources.tables import Record

INPUT = "standard input"
MOST_LINES = 1024  # of JSON that are held at once

T = TypeVar("T")


def mapped_batches(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: RowMap, column: Column = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """(schema, batches) with mapped vectors; each batch is read when it is asked for."""
    layout = chosen(schema, column)
    none = np.empty((0, rows.n_features_out), returned_dtype(layout))
    new_schema = with_vectors(schema.empty_table(), layout, none, rows.names).schema

    def mapped() -> Iterator[pa.RecordBatch]:
        fitting, first_row = None, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            batch.validate(full=True)  # lengths and offsets are the sender's own claims
            fitting = fitting or _fitting(batch, layout, rows)
            found = read_batch(batch, fitting, first_row, rows.skip_bad_rows)
            rows.seen(found.rows, found.n_skipped)
            table = pa.Table.from_batches([batch])
            if found.numbers is not None:
                table = table.take(found.numbers - first_row)
            if len(found.rows):
                new = returned(rows.function(found), layout, first_row)
                table = with_vectors(table, fitting, new, rows.names)
                yield from table.combine_chunks().to_batches()
            first_row += batch.num_rows

    return new_schema, mapped()


def mapped_reader(reader: Any, rows: RowMap) -> Any:
    """A reader of record batches with mapped vectors, none of which is read before it is needed."""

    def explained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with frame_errors():
            yield from batches

    with frame_errors():
        schema, batches = mapped_batches(reader.schema, reader, rows)
    return pa.RecordBatchReader.from_batches(schema, explained(batches))


def map_arrow(source: BinaryIO, target: BinaryIO, rows: RowMap, column: Column = None) -> None:
    """Read an Arrow IPC stream and write one with mapped vectors, batch by batch."""
    with read_errors(INPUT, "Arrow"):
        reader = pa.ipc.open_stream(source)
        schema, batches = mapped_batches(reader.schema, reader, rows, column)
    writer = pa.ipc.new_stream(target, schema)
    for batch in _explained(batches, "Arrow"):
        writer.write_batch(batch)
        target.flush()
    writer.close()  # which marks the end, and is left out after an error
    target.flush()


def map_jsonl(
    source: BinaryIO,
    target: BinaryIO,
    rows: RowMap,
    column: Column = None,
    chunk_rows: int | None = None,
) -> None:
    """Read JSON lines and write them with mapped vectors, some lines at a time.

    Other fields are as they were. Vectors may be nested, as in {"data": [{"embedding": [...]}]}.
    """
    n_rows = chunk_rows or min(MOST_LINES, text_rows(rows.n_features))
    for held, new, layout in _explained(_mapped_lines(source, rows, column, n_rows), "JSON lines"):
        for record, row in zip(held, new.tolist(), strict=True):
            _put(record, layout, row, rows.names)
            target.write(json.dumps(record.held, ensure_ascii=False).encode() + b"\n")
        target.flush()


def _mapped_lines(
    source: BinaryIO, rows: RowMap, column: Column, n_rows: int
) -> Iterator[tuple[list[Record], Matrix, Layout]]:
    records = (record for record in tables.records(source, tables.JSON) if record.held != "")
    layout, first_row = None, 0
    while held := list(itertools.islice(records, n_rows)):
        layout = layout or _json_layout(held, column)
        found = np.array([_vector(record, layout, rows.n_features) for record in held])
        good = checks.finite_rows(found) if rows.skip_bad_rows else None
        first_row += len(held)
        if good is not None:
            held = [record for record, is_good in zip(held, good, strict=True) if is_good]
            found = found[good]
        checks.finite(found, first_row - len(found))
        rows.seen(found, 0 if good is None else len(good) - len(found))
        if held:
            yield held, rows.function(Batch(first_row - len(found), found)), layout
    if layout is None:
        raise InputError(f"{INPUT} must hold JSON lines, got none.")


def _json_layout(held: Sequence[Record], column: Column) -> Layout:
    """Which field has the vectors, judged by the first lines as in a file of JSON lines."""
    try:
        lines = [json.dumps(record.held).encode() for record in held]
        fields = list(jsonl.parse(b"\n".join(lines)).schema)
    except (FormatError, pa.ArrowInvalid):  # a field of several types, which is only carried
        fields = []
        for name, value in held[0].held.items():
            with suppress(FormatError, pa.ArrowInvalid):
                fields += jsonl.parse(json.dumps({name: value}).encode()).schema
    layout = choose(pa.schema(fields), column)
    if not layout.is_list and column is None:
        raise FormatError("has no field with a list of numbers. Choose number fields with column.")
    return layout


def _vector(record: Record, layout: Layout, n_features: int) -> list[float]:
    """The vector of a line; NaN where it is missing."""
    found: Any = [_inside(record, name)[0] for name in layout.names]
    values = found[0] if layout.is_list else found
    if values is None:
        return [np.nan] * n_features
    if not isinstance(values, list) or any(type(v) not in (int, float, type(None)) for v in values):
        raise FormatError(
            f"must have numbers in {brief(layout.names[0])}, got {brief(values)} in line "
            f"{record.line}. Correct that line."
        )
    checks.width(len(values), n_features)
    try:
        return [np.nan if value is None else float(value) for value in values]
    except OverflowError as error:
        raise FormatError(
            f"has a number that is too large in line {record.line}. Correct that line."
        ) from error


def _inside(record: Record, path: str) -> tuple[Any, Any, Any]:
    """(value, what holds it, its key there) of a field, or of one inside others."""
    if path in record.held:
        return record.held[path], record.held, path
    inner: Any = record.held
    place: tuple[Any, Any, Any] = (None, None, None)
    for part in path.split("."):
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        if not isinstance(inner, dict) or part not in inner:
            raise FormatError(f"has no {brief(path)} in line {record.line}. Correct that line.")
        place = inner[part], inner, part
        inner = inner[part]
    return place


def _put(record: Record, layout: Layout, row: list[float], names: Sequence[str]) -> None:
    """Replace the vector of a line."""
    if layout.is_list:
        _, place, key = _inside(record, layout.names[0])
        place[key] = row
        return
    if len(row) != len(layout.names):
        for name in layout.names:
            del record.held[name]
    else:
        names = layout.names
    record.held.update(zip(names, row, strict=True))


def _explained(items: Iterator[T], kind: str) -> Iterator[T]:
    with read_errors(INPUT, kind):
        yield from items


def _fitting(batch: pa.RecordBatch, layout: Layout, rows: RowMap) -> Layout:
    """The layout with the width of its vectors, which must be the one that is expected."""
    n_features = layout.n_features
    if layout.is_list:
        n_features = width(iter([batch.column(layout.names[0])]), layout)
    checks.width(n_features, rows.n_features)
    return replace(layout, n_features=n_features)

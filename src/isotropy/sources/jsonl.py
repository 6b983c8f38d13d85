"""JSON lines: an object a line with a field of numbers, as embedding services return them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import json as arrow_json

from isotropy.sources import paths
from isotropy.sources.columns import Layout, carried, choose, matrix, one_batch, width
from isotropy.sources.files import Column, File, FormatError, Rows
from isotropy.sources.lines import LinesFile, first_lines, mark, text_rows


@dataclass(frozen=True, kw_only=True)
class JsonlFile(LinesFile):
    kind: ClassVar[str] = "JSON lines"
    schema: pa.Schema
    layout: Layout

    def read(
        self, first_row: int, n_rows: int, place: tuple[int, ...], carry: bool
    ) -> Iterator[tuple[Rows, pa.Table | None]]:
        data = paths.read_bytes(self.path, *place)
        own = self.layout.top_level(self.schema)
        schema = self.schema if carry else pa.schema([self.schema.field(name) for name in own])
        try:
            batch = one_batch(parse(data, schema))
        except pa.ArrowInvalid as error:
            line = self.line_number(place[0])
            raise FormatError(_explain(data, line, schema, error)) from None
        yield matrix(batch, self.layout, first_row), carried(batch, self.layout)


def open_jsonl(path: str, column: Column, chunk_rows: int | None) -> File:
    head = first_lines(path)
    try:
        sample = parse(head)
    except pa.ArrowInvalid:  # guess from the first line; the bad one is named when it is read
        try:
            sample = parse(head.lstrip().split(b"\n", 1)[0])
        except pa.ArrowInvalid as error:
            raise FormatError(_explain(head, 1, None, error)) from None
    schema = pa.schema([pa.field(f.name, _without_null(f.type)) for f in sample.schema])
    layout = choose(schema, column)
    if not layout.is_list and column is None:
        raise FormatError("has no field with a list of numbers. Choose number fields with column.")
    own = layout.top_level(schema)
    fields = [f.with_type(_floating(f.type)) if f.name in own else f for f in schema]
    if layout.is_list:
        lists = sample.column(own[0]).iterchunks()
        layout = replace(layout, n_features=width(lists, layout))
    marks = mark(path, 0, chunk_rows or text_rows(layout.n_features))
    return JsonlFile(
        path=path,
        n_rows=sum(n_rows for n_rows, _, _ in marks),
        n_features=layout.n_features,
        dtype="float64",
        column=layout.name,
        chunk_rows=chunk_rows,
        marks=marks,
        schema=pa.schema(fields),
        layout=replace(layout, dtype="float64"),
    )


def parse(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """Lines as a table of the schema's fields, or of all where there is none yet."""
    return arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
        ),
    )


def _explain(data: bytes, line: int, schema: pa.Schema | None, error: Exception) -> str:
    """Which line of data, whose first one has number `line`, cannot be parsed."""
    reason = str(error).splitlines()[0]
    for number, text in enumerate(data.split(b"\n"), line):
        if not text.strip():
            continue
        try:
            json.loads(text)
            parse(text, schema)
        except json.JSONDecodeError as wrong:
            return f"is not valid JSON in line {number} ({wrong.msg}). Correct that line."
        except ValueError as wrong:
            reason = str(wrong).splitlines()[0].removesuffix(" in row 0")
            return f"cannot be parsed in line {number} ({reason}). Correct that line."
    return f"cannot be parsed after line {line} ({reason}). Correct it."


def _without_null(kind: Any) -> Any:
    return pa.string() if pa.types.is_null(kind) else kind


def _floating(kind: Any) -> Any:
    """The type with every whole number in it as float64, which a later line may need."""
    if pa.types.is_integer(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(_floating(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_floating(field.type)) for field in kind])
    return kind

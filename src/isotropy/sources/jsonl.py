"""JSON lines: an object a line with a field of numbers, as embedding services return them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from isotropy.sources import paths
from isotropy.sources.columns import Layout, carried, choose, matrix, one_batch, width
from isotropy.sources.files import Column, File, FormatError, Rows
from isotropy.sources.lines import BLOCK, LinesFile, first_lines, mark, text_rows
from isotropy.sources.tables import expect_flat, expect_utf8

KEY = re.compile(rb'"((?:[^"\\\n]|\\.)*)"\s*:')
SPACES = (ord(" "), ord("\t"))
MOST_NAMES = 64
TOKEN = re.compile(rb'[{}]|"((?:[^"\\\n]|\\.)*)"(\s*:)?')


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
        except (FormatError, pa.ArrowInvalid) as error:
            line = self.line_number(place[0])
            raise FormatError(_explain(data, line, schema, error)) from None
        yield matrix(batch, self.layout, first_row), carried(batch, self.layout)


def open_jsonl(path: str, column: Column, chunk_rows: int | None) -> File:
    head = first_lines(path)
    try:
        sample = parse(head)
    except (FormatError, pa.ArrowInvalid):  # the bad line is named when it is read
        try:
            sample = parse(head.lstrip().split(b"\n", 1)[0])
        except pa.ArrowInvalid as error:
            raise FormatError(_explain(head, 1, None, error)) from None
    schema = _with_later_fields(path, head, sample.schema)
    schema = pa.schema([pa.field(f.name, _without_null(f.type)) for f in schema])
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
    expect_flat(data, 1)
    expect_utf8(data, 1)  # Arrow takes any bytes for text
    return arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
        ),
    )


def _with_later_fields(path: str, head: bytes, schema: pa.Schema) -> pa.Schema:
    """The schema with the fields that only later lines have.

    Of these nothing is parsed but the first line of each kind, told by the names in it and, where
    objects are nested, by their order.
    """
    known: set[Any] = set()
    for block in _blocks(path, len(head)):
        new = b"\n".join(_new_lines(block, head, known))
        if not new.strip():
            continue
        try:
            found = parse(new).schema
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
        except (FormatError, pa.ArrowException):  # which is explained when the line is read
            continue
    return schema


def _new_lines(block: bytes, head: bytes, known: set[Any]) -> Iterator[bytes]:
    """The first line of each kind that is not known yet; `known` then has it."""
    if not known:
        known.update(_names(head))
        known.update(map(_shape, head.split(b"\n")))
    if block.count(b"{") <= block.count(b"\n") + 1:  # no objects in objects
        for name in _names(block) - known:
            known.add(name)
            place = re.search(b'"%s"[ \t]*:' % re.escape(name), block)
            start = block.rfind(b"\n", 0, place.start() if place else 0) + 1
            yield block[start : (block.find(b"\n", start) + 1) or len(block)]
        return
    for line in block.split(b"\n"):
        shape = _shape(line)
        if shape not in known:
            known.add(shape)
            yield line


def _names(block: bytes) -> set[bytes]:
    """What stands in quotes before a colon: the names of fields, and a text now and then."""
    data = np.frombuffer(block + b"  ", np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    after = data[quotes + 1]
    spaced = np.isin(after, SPACES)
    if np.isin(data[quotes[spaced] + 2], [*SPACES, ord(":")]).any() or b"\\" in block:
        return set(KEY.findall(block))
    closing = np.flatnonzero(after == ord(":"))
    closing = closing[closing > 0]
    starts, ends = quotes[closing - 1] + 1, quotes[closing]
    names: set[bytes] = set()
    for length in np.unique(ends - starts).tolist():
        rest = data[starts[ends - starts == length][:, None] + np.arange(length)]
        while len(rest):
            names.add(rest[0].tobytes())
            if len(names) > MOST_NAMES:
                return set(KEY.findall(block))
            rest = rest[(rest != rest[0]).any(axis=1)]
    return names


def _shape(line: bytes) -> tuple[bytes, ...]:
    """Braces and names in the order in which they stand in a line."""
    tokens = TOKEN.finditer(line)
    return tuple(t[1] if t[2] else t[0] for t in tokens if t[2] or t[1] is None)


def _blocks(path: str, start: int) -> Iterator[bytes]:
    """Whole lines from byte `start` on, some at a time."""
    rest = b""
    with paths.open_binary(path) as file:
        file.seek(start)
        while block := file.read(BLOCK):
            cut = block.rfind(b"\n") + 1
            if not cut:
                rest += block
                continue
            yield rest + block[:cut]
            rest = block[cut:]
    if rest:
        yield rest


def _explain(data: bytes, line: int, schema: pa.Schema | None, error: Exception) -> str:
    """Which line of data, whose first one has number `line`, cannot be parsed."""
    reason = str(error).splitlines()[0]
    try:
        expect_flat(data, line)
        expect_utf8(data, line)
    except FormatError as wrong:
        return str(wrong)
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
            return f"cannot be parsed in line {number} ({reason[:200]}). Correct that line."
    return f"cannot be parsed after line {line} ({reason[:200]}). Correct it."


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

"""JSON lines: one object per line with a list of numbers, as embedding services return them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from isotropy.errors import brief, one_line
from isotropy.sources import tables
from isotropy.sources.columnar import Layout, carried, choose, matrix, one_batch, width
from isotropy.sources.csv import LinesFile, first_lines, mark, marked, text_rows
from isotropy.sources.files import Column, File, FormatError, Matrix
from isotropy.sources.tables import expect_flat, expect_objects, expect_utf8

KEY = re.compile(rb'"((?:[^"\\\n]|\\.)*)"\s*:')
PLAIN = re.compile(rb'"([^"\\\n]*)"[ \t]*:')  # of lines without a backslash
NO_SHAPE = bytes(set(range(256)) - set(b"{}:"))
MOST_FIELDS = 4096
STEP = 1 << 20  # bytes in which new fields are looked for at once


@dataclass(frozen=True, kw_only=True)
class JsonlFile(LinesFile):
    kind: str = "JSON lines"
    schema: pa.Schema
    layout: Layout

    def decode(
        self, data: bytes, first_row: int, n_rows: int, offset: int, carry: bool
    ) -> tuple[Matrix, pa.Table | None]:
        own = self.layout.top_level(self.schema.names)
        schema = self.schema if carry else pa.schema([self.schema.field(name) for name in own])
        try:
            batch = one_batch(parse(data, schema))
            if batch.num_rows > n_rows:
                raise FormatError("several objects in one line")
        except (FormatError, pa.ArrowInvalid) as error:
            line = self.line_number(offset)
            raise FormatError(_explain(data, line, schema, error)) from None
        table = carried(batch, self.layout)
        if table is not None and any(map(_is_rounded, table.columns)):
            self._expect_exact(data, offset, table.column_names)
        return matrix(batch, self.layout, first_row), table

    def _expect_exact(self, data: bytes, offset: int, names: Sequence[str]) -> None:
        """Raise if a field beside the vectors has an integer that float64 cannot represent."""
        for number, text in enumerate(data.split(b"\n"), self.line_number(offset)):
            found = tables.json_object(tables.decoded(text, number), number) if text.strip() else {}
            for name in names:
                value = found.get(name)
                if type(value) is int and (value.bit_length() > 1023 or float(value) != value):
                    raise FormatError(
                        f"has {one_line(value, 40)} in field {brief(name)}, line {number}, which "
                        "would lose digits: other lines have fractions there, or it is beyond 64 "
                        "bits. Write it as text."
                    )


def open_jsonl(path: str, column: Column, chunk_rows: int | None) -> File:
    head = first_lines(path)
    names = _few(_names(head))
    samples = [head]
    try:
        schema = parse(head).schema
    except (FormatError, pa.ArrowInvalid):  # the bad line is named when it is read
        samples = [head.lstrip().split(b"\n", 1)[0]]
        try:
            schema = parse(samples[0]).schema
        except (FormatError, pa.ArrowInvalid) as error:
            raise FormatError(_explain(head, 1, None, error)) from None
    for lines in _later_lines(path, head, names):
        try:
            found = parse(lines).schema
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
        except (FormatError, pa.ArrowException):  # explained when the line is read
            continue
        samples.append(lines)
    types = {f.name: pa.string() if pa.types.is_null(f.type) else f.type for f in schema}
    schema = pa.schema(types)
    layout = choose(schema, column)
    if not layout.is_list and column is None:
        raise FormatError("has no field with a list of numbers. Choose number fields with column.")
    own = layout.top_level(schema.names)
    fields = [f.with_type(_floating(f.type)) if f.name in own else f for f in schema]
    if layout.is_list:
        only = pa.schema([f for f in fields if f.name in own])
        layout = replace(layout, n_features=width(_lists(samples, only), layout))
    marks = mark(path, 0, chunk_rows or text_rows(layout.n_features))
    layout = replace(layout, dtype="float64")
    found = layout.fields([(name, "") for name in schema.names]) | marked(marks)
    return JsonlFile(path=path, chunk_rows=chunk_rows, schema=pa.schema(fields), **found)


def parse(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """Lines as a table of the schema's fields, or of all fields if there is no schema."""
    expect_flat(data, 1)
    expect_utf8(data, 1)  # Arrow takes any bytes for text
    expect_objects(data, 1)
    return arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
        ),
    )


def _later_lines(path: str, head: bytes, names: set[bytes]) -> Iterator[bytes]:
    """The first lines after the head that have new fields, a few at a time.

    If objects are nested, these are the first lines with each order of names.
    """
    known: set[Any] = set()
    for block in _blocks(path, len(head)):
        if block.count(b"{") <= block.count(b"\n") + 1:  # no objects in objects
            lines = list(_new_lines(block, names))
        else:
            known = known or set(map(_shape, head.split(b"\n")))
            shapes = {_shape(line): line for line in reversed(block.split(b"\n"))}
            lines = [line for shape, line in shapes.items() if shape not in known]
            known.update(shapes)
        if new := b"\n".join(lines).strip():
            names |= _names(new)
            _few(names)
            yield new


def _new_lines(block: bytes, names: set[bytes]) -> Iterator[bytes]:
    """The first line with each name that is not among these."""
    new = _few(_names(block) - names)
    for match in _pattern(block).finditer(block) if new else ():
        if match[1] in new:
            new.discard(match[1])
            start = block.rfind(b"\n", 0, match.start()) + 1
            yield block[start : (block.find(b"\n", start) + 1) or len(block)]


def _pattern(block: bytes) -> re.Pattern[bytes]:
    return KEY if b"\\" in block else PLAIN


def _names(block: bytes) -> set[bytes]:
    """Everything in quotes before a colon: the names of fields, and sometimes a text."""
    return set(_pattern(block).findall(block))


def _few(names: set[bytes]) -> set[bytes]:
    if len(names) > MOST_FIELDS:
        raise FormatError(
            f"has more than {MOST_FIELDS:,} different fields. Write a vector as one list."
        )
    return names


def _shape(line: bytes) -> tuple[bytes, ...]:
    """Braces and names in the order of a line."""
    if b"\\" in line:
        line = line.replace(b"\\\\", b"\0").replace(b'\\"', b"\1")
    first, *rest = line.split(b'"')
    found = [first.translate(None, NO_SHAPE)]
    for text, after in zip(rest[::2], rest[1::2], strict=False):
        after = after.translate(None, NO_SHAPE)
        found += (text, after) if after.startswith(b":") else (after,) if after else ()
    return tuple(found)


def _lists(samples: Sequence[bytes], schema: pa.Schema) -> Iterator[pa.Array]:
    """The values of the only field of the schema in these lines."""
    for lines in samples:
        try:
            yield from parse(lines, schema).column(0).iterchunks()
        except (FormatError, pa.ArrowInvalid):  # explained when the line is read
            continue


def _blocks(path: str, start: int) -> Iterator[bytes]:
    """Complete lines from byte `start` on, some at a time."""
    held, n_bytes = list[bytes](), 0
    with tables.open_plain(path) as file:
        file.seek(start)
        while block := file.read(STEP):
            cut = block.rfind(b"\n") + 1
            if cut:
                yield b"".join([*held, block[:cut]])
                held, n_bytes = [], 0
            held.append(block[cut:])
            n_bytes += len(block) - cut
            if n_bytes > tables.MOST_RECORD:
                raise tables.too_long()
    yield b"".join(held)


def _explain(data: bytes, line: int, schema: pa.Schema | None, error: Exception) -> str:
    """Which line of data, whose first one has number `line`, cannot be parsed."""
    reason = str(error).splitlines()[0]
    try:
        expect_flat(data, line)
        expect_utf8(data, line)
    except FormatError as wrong:
        return str(wrong)
    for number, text in enumerate(data.split(b"\n"), line):
        if not text.strip(tables.BLANK):
            continue
        try:
            tables.json_object(tables.decoded(text, number), number)
            parse(text, schema)
        except FormatError as wrong:
            return str(wrong)
        except pa.ArrowInvalid as wrong:
            reason = str(wrong).splitlines()[0].removesuffix(" in row 0")
            return f"cannot be parsed in line {number} ({reason[:200]}). Correct that line."
    return f"cannot be parsed after line {line} ({reason[:200]}). Correct it."


def _is_rounded(column: pa.ChunkedArray) -> bool:
    """Whether floats are so large that integers may have lost digits."""
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), 2.0**53)).as_py())


def _floating(kind: Any) -> Any:
    """The type with float64 for every integer type in it, which a later line may need."""
    if pa.types.is_integer(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(_floating(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_floating(field.type)) for field in kind])
    return kind

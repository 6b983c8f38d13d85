"""CSV and TSV: a column for each feature, or one that holds lists such as "[0.1, 0.2]"."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from isotropy.sources import paths
from isotropy.sources.columns import Layout, carried, choose, matrix, one_batch
from isotropy.sources.files import Column, File, FormatError, Rows
from isotropy.sources.lines import LinesFile, first_lines, mark, text_rows


@dataclass(frozen=True, kw_only=True)
class CsvFile(LinesFile):
    kind: ClassVar[str] = "CSV"
    names: tuple[str, ...]
    delimiter: str
    layout: Layout

    def read(
        self, first_row: int, n_rows: int, place: tuple[int, ...], carry: bool
    ) -> Iterator[tuple[Rows, pa.Table | None]]:
        data = paths.read_bytes(self.path, *place)
        vectors = dict.fromkeys(self.layout.names, self._vector_type)
        types = dict.fromkeys(self.names, pa.string()) | vectors  # text as it is: 007 stays 007
        wanted = list(self.names if carry else self.layout.names)
        try:
            batch = one_batch(parse(data, self.delimiter, list(self.names), types, wanted))
        except pa.ArrowInvalid as error:
            raise FormatError(self._explain(error, place[0])) from None
        others = carried(batch, self.layout)
        if not self.layout.is_list:
            yield matrix(batch, self.layout, first_row), others
            return
        lists = batch.column(self.layout.names[0])
        yield matrix(_parsed(lists, self.layout, first_row), self.layout, first_row), others

    @property
    def _vector_type(self) -> pa.DataType:
        return pa.string() if self.layout.is_list else pa.float64()

    def _explain(self, error: Exception, offset: int) -> str:
        """The parser's reason with the line's number in the file."""
        reason = str(error).splitlines()[0]
        row = re.search(r"Row #(\d+): ?", reason)
        if row is None:
            return f"cannot be parsed ({reason}). Correct it."
        line = self.line_number(offset) + int(row[1]) - 1
        return f"cannot be parsed in line {line} ({reason.replace(row[0], '')}). Correct that line."


def open_csv(path: str, column: Column, chunk_rows: int | None) -> File:
    delimiter = "\t" if path.lower().endswith(".tsv") else ","
    head = first_lines(path)
    names, start = _header(head, delimiter)
    try:
        sample = parse(head[start:], delimiter, names)
    except pa.ArrowInvalid:  # guess from the first row; a bad line is named when it is read
        lines = head[start:].splitlines(keepends=True)
        sample = parse(lines[0] if lines else b"", delimiter, names)
    if not sample.num_rows:
        raise FormatError("holds no rows.")
    layout = choose(_schema(sample), column, typed=False)
    if layout.is_list:
        first = _parsed(sample.column(layout.names[0]).chunk(0).slice(0, 1), layout, 0)
        layout = replace(layout, n_features=len(first.column(0)[0].values))
    marks = mark(path, start, chunk_rows or text_rows(layout.n_features), quoted=True)
    return CsvFile(
        path=path,
        n_rows=sum(n_rows for n_rows, _, _ in marks),
        n_features=layout.n_features,
        dtype="float64",
        column=layout.name,
        chunk_rows=chunk_rows,
        marks=marks,
        names=tuple(names),
        delimiter=delimiter,
        layout=replace(layout, dtype="float64"),
    )


def parse(
    data: bytes,
    delimiter: str,
    names: list[str],
    types: dict[str, Any] | None = None,
    wanted: list[str] | None = None,
    quote: str | bool = '"',
) -> pa.Table:
    """Lines without a header as a table; types are guessed where they are not given."""
    if not data.strip():
        return pa.table({name: [] for name in names})
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char=quote, newlines_in_values=bool(quote)
        ),
        arrow_csv.ConvertOptions(column_types=types, include_columns=wanted),
    )


def _header(head: bytes, delimiter: str) -> tuple[list[str], int]:
    """(column names, offset of the first row); a first line of numbers is a row already."""
    line = head.split(b"\n", 1)[0]
    text = line.removeprefix(codecs.BOM_UTF8).decode(errors="replace").strip("\r")
    cells = next(csv.reader([text], delimiter=delimiter), [])
    if not cells:
        raise FormatError("begins with an empty line. Begin with a header or a row.")
    counted = cells == [str(i) for i in range(len(cells))] and len(cells) > 1  # a frame's header
    if all(map(_is_value, cells)) and not counted:
        return [f"f{i}" for i in range(len(cells))], 0
    if len(set(cells)) < len(cells):
        raise FormatError("has two columns of one name. Give each its own.")
    return cells, len(line) + 1


def _is_value(cell: str) -> bool:
    return _guess(cell) is not None


def _guess(cell: str) -> pa.DataType | None:
    """The type of a cell that holds a number or a list of them."""
    if cell.lstrip().startswith("["):
        return pa.list_(pa.float64())
    try:
        float(cell)
    except ValueError:
        return None
    return pa.int64() if cell.strip().lstrip("+-").isdigit() else pa.float64()


def _schema(sample: pa.Table) -> pa.Schema:
    """The guessed schema; a column of text that begins with a value is one of values.

    Otherwise one bad cell would turn a feature into text, and nobody would miss it.
    """
    fields = []
    for field in sample.schema:
        first = sample.column(field.name)[0].as_py() if pa.types.is_string(field.type) else None
        fields.append(field.with_type((_guess(first) if first else None) or field.type))
    return pa.schema(fields)


def _parsed(text: pa.Array, layout: Layout, first_row: int) -> pa.RecordBatch:
    """Lists written as text, between commas or spaces, as lists; an empty cell becomes null."""
    inner = pc.utf8_trim(text, " []\r\n\t")
    inner = pc.if_else(pc.equal(inner, ""), None, inner)
    lists = pc.split_pattern(pc.replace_substring_regex(inner, r"\s*,\s*|\s+", ","), ",")
    try:
        values = lists.flatten().cast(pa.float64())
    except pa.ArrowInvalid as error:
        raise FormatError(
            f"has other than numbers in the lists of column {layout.names[0]!r}, in or after row "
            f"{first_row} ({error}). Write lists such as [0.1, 0.2]."
        ) from None
    parsed = pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null())
    return pa.RecordBatch.from_arrays([parsed], [layout.names[0]])

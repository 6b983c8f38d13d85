"""CSV and TSV files of vectors, and what all files of text lines share."""

from __future__ import annotations

import codecs
import csv
import io
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from isotropy.errors import brief
from isotropy.sources import tables
from isotropy.sources.base import CHUNK_BYTES
from isotropy.sources.columnar import Layout, choose, matrix, one_batch, width
from isotropy.sources.files import Column, File, FormatError, Matrix, Pieces, Place
from isotropy.sources.tables import MISSING, MOST_RECORD, Form, Record, too_long

BLOCK = 1 << 24
TEXT_BYTES = 16  # per number in text, so that a chunk holds about CHUNK_BYTES of it
SAMPLE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LinesFile(File):
    """Rows in lines; `marks` holds (number of rows, offset, number of bytes) of each piece.

    A .gz file is one piece, because it can only be read from its beginning.
    """

    marks: tuple[tuple[int, int, int], ...]

    def pieces(self) -> list[tuple[int, Place]]:
        if tables.is_packed(self.path):
            return [(self.n_rows, ())]
        return [(n_rows, place) for n_rows, *place in self.marks]  # type: ignore[misc]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        with tables.open_plain(self.path) as file:
            for n_here, offset, n_bytes in [(n_rows, *place)] if place else self.marks:
                file.seek(offset)
                yield self.decode(file.read(n_bytes), first_row, n_here, offset, carry)
                first_row += n_here

    @abstractmethod
    def decode(
        self, data: bytes, first_row: int, n_rows: int, offset: int, carry: bool
    ) -> tuple[Matrix, pa.Table | None]:
        """The rows in these bytes, which begin at `offset`, and their other columns."""

    def line_number(self, offset: int) -> int:
        """The number, counting from 1, of the line that begins at offset."""
        with tables.open_plain(self.path) as file:
            whole, rest = divmod(offset, BLOCK)
            sizes = [BLOCK] * whole + [rest]
            return 1 + sum(file.read(size).count(b"\n") for size in sizes)


def text_rows(n_features: int) -> int:
    """The default number of rows in a chunk of text."""
    return max(1, CHUNK_BYTES // (TEXT_BYTES * n_features))


def first_lines(path: str) -> bytes:
    """Complete lines from the beginning of the file, at least one."""
    with tables.open_plain(path) as file:
        data = file.read(SAMPLE)
        while b"\n" not in data:
            if len(data) > MOST_RECORD:
                raise too_long(1)
            more = file.read(len(data))  # twice as much each time
            if not more:
                return data
            data += more
        more = file.read(1)
    return data if not more else data[: data.rindex(b"\n") + 1]


def first_records(path: str, start: int, form: Form) -> bytes:
    """Complete records from byte `start` on, at least one if there are any."""
    size = SAMPLE
    while size <= 2 * MOST_RECORD:
        with tables.open_plain(path) as file:
            file.seek(start)
            data = file.read(size)
        ends = [int(end) for block in _line_ends(io.BytesIO(data), 0, form) for end in block]
        if len(data) < size:
            return data
        if len(ends) > 1:
            return data[: ends[-2]]  # the last one may be cut
        size *= 2
    raise too_long()


def mark(
    path: str, start: int, rows: int, form: Form | None = None
) -> tuple[tuple[int, int, int], ...]:
    """Pieces of `rows` records each from byte `start` on; empty lines are not counted.

    Without a form, lines of white space are not counted either. Records are lines, except in a
    form with quoted cells, which may contain line breaks.
    """
    marks: list[tuple[int, int, int]] = []
    begin, count, last = start, 0, start
    with tables.open_plain(path) as file:
        for ends in _line_ends(file, start, form):
            if not len(ends):
                continue
            if np.diff(ends, prepend=last).max() > MOST_RECORD:
                raise too_long()
            last = int(ends[-1])
            while count + len(ends) >= rows:
                end = int(ends[rows - count - 1])
                marks.append((rows, begin, end - begin))
                ends = ends[rows - count :]
                begin, count = end, 0
            count += len(ends)
        if count:
            marks.append((count, begin, file.tell() - begin))
    return tuple(marks)


def marked(marks: tuple[tuple[int, int, int], ...]) -> dict[str, Any]:
    """What follows from the pieces for a file."""
    return {"marks": marks, "n_rows": sum(n_rows for n_rows, _, _ in marks)}


def _line_ends(file: IO[bytes], start: int, form: Form | None) -> Iterator[NDArray[np.int64]]:
    """Offsets just after the records that are not empty lines, block by block."""
    quoted = form is not None and form.quoted
    line, inside, tail, last = start, False, False, ord("\n")
    file.seek(start)
    offset = start
    while block := file.read(BLOCK):
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        if quoted and (inside or b'"' in block):
            odd = _inside_quotes(data, inside, last, form)  # type: ignore[arg-type]
            if odd is None:
                yield from _one_by_one(file, line, form)  # type: ignore[arg-type]
                return
            ends, inside = ends[~odd[ends]], bool(odd[-1])
        lengths = np.diff(ends + offset, prepend=line - 1) - 1
        returns = (lengths == 1) & (np.where(ends, data[ends - 1], last) == ord("\r"))
        held = (lengths > 0) & ~returns
        if form is None:
            begins = np.append(0, ends[:-1] + 1)[: len(ends)]
            for i in np.flatnonzero(held & (data[begins] <= ord(" "))):  # perhaps spaces only
                held[i] = (tail and not i) or bool(block[begins[i] : ends[i]].strip())
        last = int(data[-1])
        if len(ends):
            line = offset + int(ends[-1]) + 1
        offset += len(block)
        if offset - line > MOST_RECORD + BLOCK:
            raise too_long()
        rest = block[ends[-1] + 1 if len(ends) else 0 :]
        rest = rest.strip() if form is None else rest.strip(b"\r\n")
        tail = bool(rest) or (tail and not len(ends))
        yield ends[held] + (offset - len(block) + 1)
    if tail:
        yield np.array([offset])


def _inside_quotes(
    data: NDArray[np.uint8], inside: bool, last: int, form: Form
) -> NDArray[np.bool_] | None:
    """Whether each byte is inside quotes; None if there is a quote in an unquoted cell.

    A quote opens a cell only at its beginning, so counting is enough if every opening quote is
    there, or right after another quote.
    """
    is_quote = data == ord('"')
    odd: NDArray[np.bool_] = (np.cumsum(is_quote, dtype=np.uint8) + np.uint8(inside)) % 2 == 1
    opening = np.flatnonzero(is_quote & odd)
    before = np.where(opening, data[opening - 1], last)
    if not np.isin(before, [ord(form.delimiter), ord("\n"), ord('"')]).all():
        return None
    return odd


def _one_by_one(file: IO[bytes], start: int, form: Form) -> Iterator[NDArray[np.int64]]:
    """The same offsets, from a parser that takes one record after another."""
    file.seek(start)
    lines: list[bytes] = []  # of the record that is being parsed
    found: list[int] = []

    def texts() -> Iterator[str]:
        while line := file.readline(MOST_RECORD + 1):
            lines.append(line)
            yield line.decode("latin-1")  # in which quotes and delimiters are those of UTF-8

    try:
        for _ in csv.reader(texts(), delimiter=form.delimiter):
            start += sum(map(len, lines))
            if any(line.rstrip(b"\r\n") for line in lines):
                found.append(start)
            lines.clear()
            if len(found) == 1 << 16:
                yield np.array(found)
                found = []
    except csv.Error as error:
        raise FormatError(
            f"must have every quote closed, got one that is not, after {start} bytes "
            f"({str(error).split(' - ')[0]}). Correct it, or save it as .npy or .parquet."
        ) from error
    yield np.array(found, dtype=np.int64)


WIDE = 4096  # columns from which Arrow is slower than Python
SAMPLED_CELLS = 1 << 16  # cells that determine what the columns hold
NULLS = [spelling for word in MISSING for spelling in {word, word.upper(), word.title()}]
NULLS += ["NaN", "-NaN", "NaT"]


@dataclass(frozen=True, kw_only=True)
class CsvFile(LinesFile):
    kind: str = "CSV"
    header: tuple[str, ...]
    form: Form
    layout: Layout

    def decode(
        self, data: bytes, first_row: int, n_rows: int, offset: int, carry: bool
    ) -> tuple[Matrix, pa.Table | None]:
        own = set(self.layout.names)
        others = [name for name in self.header if carry and name not in own]
        rows: Matrix | None = None
        if len(self.header) <= WIDE:
            with suppress(pa.ArrowInvalid):  # the reader below says which cell, or knows better
                table = self._parse(data, others)
                rows = self._rows(table, first_row) if table.num_rows == n_rows else None
        if rows is None:
            line = self.line_number(offset)
            rows, table = self._one_by_one(data, others, first_row, line)
        return rows, table.select(others) if others else None

    def _parse(self, data: bytes, others: list[str]) -> pa.Table:
        own = self.layout.names
        kind = pa.string() if self.layout.is_list else pa.float64()
        types = dict.fromkeys(self.header, pa.string())  # text as it is: 007 stays 007
        types |= dict.fromkeys(own, kind)
        quote = '"' if self.form.quoted else False
        wanted = [*own, *others]
        return parse(data, self.form.delimiter, list(self.header), types, wanted, quote, NULLS)

    def _rows(self, table: pa.Table, first_row: int) -> Matrix:
        batch = one_batch(table.select(self.layout.names))
        if self.layout.is_list:
            batch = _lists_from_text(batch.column(0), self.layout, first_row)
        return matrix(batch, self.layout, first_row)

    def _one_by_one(
        self, data: bytes, others: list[str], first_row: int, line: int
    ) -> tuple[Matrix, pa.Table]:
        """The same, from the reader of all text tables, which says what is wrong and where."""
        places = {name: i for i, name in enumerate(self.header)}
        found: list[Any] = []
        carried: dict[str, list[str]] = {name: [] for name in others}
        for record in tables.records(io.BytesIO(data), self.form, line):
            if not record.held:
                continue
            tables.expect_cells(record, len(self.header))
            cells = [record.held[places[name]] for name in self.layout.names]
            row = first_row + len(found)
            found.append(cells[0] if self.layout.is_list else self._numbers(cells, row, record))
            for name, column in carried.items():
                column.append(record.held[places[name]])
        table = pa.table({name: pa.array(c, pa.string()) for name, c in carried.items()})
        if self.layout.is_list:
            parsed = _lists_from_text(pa.array(found, pa.string()), self.layout, first_row)
            return matrix(parsed, self.layout, first_row), table
        return np.array(found, dtype=np.float64).reshape(len(found), self.n_features), table

    def _numbers(self, cells: list[str], row: int, record: Record) -> list[float | None]:
        with suppress(ValueError):
            if not any("_" in cell for cell in cells):
                return [float(cell) for cell in cells]
        found = list(map(tables.number, cells))
        if None in found:
            wrong = found.index(None)
            raise FormatError(
                f"has {brief(cells[wrong])} in column {brief(self.layout.names[wrong])}, row {row} "
                f"(line {record.line}), where there must be a number. "
                f"{tables.no_number(cells[wrong])}"
            )
        return found


def open_csv(path: str, column: Column, chunk_rows: int | None) -> File:
    form, header, start = _headed(path)
    sample = first_records(path, start, form)
    names = list(header)
    kinds = _kinds(sample, form, len(names))
    layout = choose(pa.schema(list(zip(names, kinds, strict=True))), column, typed=False)
    if layout.is_list:
        place = names.index(layout.names[0])
        records = tables.records(io.BytesIO(sample), form, 2)
        cells = (record.held[place] for record in records if len(record.held) > place)
        lists = (
            _lists_from_text(pa.array([cell]), layout, 0).column(0)
            for cell in cells
            if cell.lstrip(' "').startswith("[")
        )
        layout = replace(layout, n_features=width(lists, layout))
    layout = replace(layout, dtype="float64")
    marks = mark(path, start, chunk_rows or text_rows(layout.n_features), form)
    fields = layout.fields([(name, "string") for name in header]) | marked(marks)
    return CsvFile(path=path, chunk_rows=chunk_rows, header=header, form=form, **fields)


def parse(
    data: bytes,
    delimiter: str,
    names: list[str],
    types: dict[str, Any] | None = None,
    wanted: list[str] | None = None,
    quote: str | bool = '"',
    nulls: list[str] | None = None,
) -> pa.Table:
    """Lines without a header as a table; types are guessed if they are not given."""
    if not data.strip():
        return pa.table({name: [] for name in names})
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char=quote, newlines_in_values=bool(quote)
        ),
        arrow_csv.ConvertOptions(column_types=types, include_columns=wanted, null_values=nulls),
    )


def _headed(path: str) -> tuple[Form, tuple[str, ...], int]:
    """(how the file is written, names of its columns, offset of its first row)."""
    data = io.BytesIO(first_lines(path))
    lines = tables.head(data)
    form = tables.form_of(tables.suffix(path), lines)
    assert form is not None
    data.seek(0)
    first = next(tables.records(data, form), None)
    if first is None or not first.held:
        raise FormatError("begins with an empty line. Begin with a header or a row.")
    if tables.is_row(first.held):
        names = tuple(f"f{i}" for i in range(len(first.held)))
        return form, names, 3 if data.getvalue().startswith(codecs.BOM_UTF8) else 0
    return form, tuple(tables.unique(first.held)), first.n_bytes


def _kinds(sample: bytes, form: Form, n_columns: int) -> list[pa.DataType]:
    """What each column of the first rows holds: lists, numbers, text or nothing."""
    rows: list[list[str]] = []
    most = max(2, SAMPLED_CELLS // n_columns)
    wrong = FormatError("holds no rows.")
    try:
        for record in tables.records(io.BytesIO(sample), form, 2):
            if record.held:
                rows.append(record.held)
            if len(rows) == most:
                break
    except FormatError as error:  # raised again when that line is read
        wrong = error
    if not rows:
        raise wrong
    short = [row for row in rows if len(row) == n_columns] or [(rows[0] + [""] * n_columns)]
    return [_kind(cells) for cells in list(zip(*short, strict=False))[:n_columns]]


def _kind(cells: Sequence[str]) -> pa.DataType:
    """What most cells of a column hold, so that no bad cell silently turns a feature into text."""
    n_lists = n_numbers = n_floats = n_others = 0
    others: set[str] = set()
    for cell in cells:
        if tables.is_missing(cell):
            continue
        if cell.lstrip().startswith("["):
            n_lists += 1
        elif tables.NUMBER.fullmatch(cell) or tables.GROUPED.fullmatch(cell):
            n_numbers += 1
            n_floats += not tables.WHOLE.fullmatch(cell)
        else:
            n_others += 1
            others.add(cell if len(others) < 2 else "")
    n_cells = n_lists + n_numbers + n_others
    if not n_cells:
        return pa.null()
    if 2 * n_lists >= n_cells:
        return pa.list_(pa.float64())
    if 2 * n_numbers >= n_cells or (n_numbers and len(others) == 1):
        return pa.float64() if n_floats else pa.int64()
    return pa.string()


def _lists_from_text(text: pa.Array, layout: Layout, first_row: int) -> pa.RecordBatch:
    """Lists written as text, between commas or spaces, as lists; an empty cell becomes null."""
    inner = pc.utf8_trim(text, ' []\r\n\t"')
    inner = pc.if_else(pc.is_in(pc.utf8_lower(inner), pa.array(MISSING)), None, inner)
    lists = pc.split_pattern(pc.replace_substring_regex(inner, r"\s*,\s*|\s+", ","), ",")
    try:
        values = lists.flatten().cast(pa.float64())
    except pa.ArrowInvalid as error:
        row, cell = _first_bad(lists)
        raise FormatError(
            f"has other than numbers in the lists of column {brief(layout.names[0])}: "
            f"{brief(cell)} in row {first_row + row}. Write lists such as [0.1, 0.2]."
        ) from error
    parsed = pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null())
    return pa.RecordBatch.from_arrays([parsed], [layout.names[0]])


def _first_bad(lists: pa.Array) -> tuple[int, str]:
    """(row, value) of the first value that is not a number."""
    for row, values in enumerate(lists.to_pylist()):
        for value in values or ():
            try:
                pa.array([value]).cast(pa.float64())
            except pa.ArrowInvalid:
                return row, value
    raise AssertionError("every value is a number")

"""Rows that are lines of text: one pass over the bytes finds where each chunk begins."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from isotropy.sources import paths
from isotropy.sources.base import CHUNK_BYTES
from isotropy.sources.files import File, FormatError
from isotropy.sources.tables import MOST_RECORD, Form, too_long

BLOCK = 1 << 24
TEXT_BYTES = 16  # that a number takes in text, so that a chunk holds about CHUNK_BYTES of it
SAMPLE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LinesFile(File):
    """Rows in lines; `marks` holds (number of rows, offset, number of bytes) of each piece."""

    marks: tuple[tuple[int, int, int], ...]

    def pieces(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(n_rows, place) for n_rows, *place in self.marks]  # type: ignore[misc]

    def line_number(self, offset: int) -> int:
        """Number, counted from 1, of the line that begins at offset."""
        with paths.open_binary(self.path) as file:
            whole, rest = divmod(offset, BLOCK)
            sizes = [BLOCK] * whole + [rest]
            return 1 + sum(file.read(size).count(b"\n") for size in sizes)


def text_rows(n_features: int) -> int:
    """Rows of a chunk of text where nobody asked for a number."""
    return max(1, CHUNK_BYTES // (TEXT_BYTES * n_features))


def first_lines(path: str, n_bytes: int = SAMPLE) -> bytes:
    """Whole lines from the beginning of the file, at least one."""
    with paths.open_binary(path) as file:
        data = file.read(n_bytes)
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
    """Whole records from byte `start` on, at least one where there is one."""
    size = SAMPLE
    while size <= 2 * MOST_RECORD:
        data = paths.read_bytes(path, start, size)
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

    Nor are lines of white space, where there is no form. Records are lines, but for those of a
    form whose cells may be quoted, with line breaks in them.
    """
    marks: list[tuple[int, int, int]] = []
    begin, count, last = start, 0, start
    with paths.open_binary(path) as file:
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
        size, _ = paths.status(path)
        marks.append((count, begin, size - begin))
    return tuple(marks)


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
        tail = bool(block[ends[-1] + 1 if len(ends) else 0 :].strip()) or (tail and not len(ends))
        yield ends[held] + (offset - len(block) + 1)
    if tail:
        yield np.array([offset])


def _inside_quotes(
    data: NDArray[np.uint8], inside: bool, last: int, form: Form
) -> NDArray[np.bool_] | None:
    """Whether each byte is inside quotes; None where a quote stands inside of a bare cell.

    A quote opens a cell only at its beginning, so that counting is enough where all those that
    would open one stand there, or right after another quote.
    """
    is_quote = data == ord('"')
    odd: NDArray[np.bool_] = (np.cumsum(is_quote, dtype=np.uint8) + np.uint8(inside)) % 2 == 1
    opening = np.flatnonzero(is_quote & odd)
    before = np.where(opening, data[opening - 1], last)
    if not np.isin(before, [ord(form.delimiter), ord("\n"), ord('"')]).all():
        return None
    return odd


def _one_by_one(file: IO[bytes], start: int, form: Form) -> Iterator[NDArray[np.int64]]:
    """The same ends, from a parser that takes one record after the other."""
    file.seek(start)
    held: list[int] = []
    n_stripped = 0

    def texts() -> Iterator[str]:
        nonlocal n_stripped
        while raw := file.readline(MOST_RECORD + 1):
            held.append(len(raw))
            n_stripped += len(raw.rstrip(b"\r\n"))
            yield raw.decode("latin-1")  # in which quotes and delimiters are those of UTF-8

    reader = csv.reader(texts(), delimiter=form.delimiter)
    found: list[int] = []
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise FormatError(
                f"must have every quote closed, got one that is not, after {start} bytes "
                f"({str(error).split(' - ')[0]}). Correct it, or save it as .npy or .parquet."
            ) from None
        if record is None:
            break
        start += sum(held)
        if n_stripped:
            found.append(start)
        held.clear()
        n_stripped = 0
        if len(found) == 1 << 16:
            yield np.array(found)
            found = []
    yield np.array(found, dtype=np.int64)

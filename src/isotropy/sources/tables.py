"""Text tables: the one reader of CSV, TSV, lines and JSON lines, each also with .gz.

It decodes bytes, finds records and their delimiter, recognizes headers and numbers, and limits
sizes. Files of vectors (csv, jsonl), texts (models.texts) and tasks (tasks.reading) are read
through it.

Only a line feed ends a line; a carriage return before it is dropped. Cells between commas or
semicolons may be quoted, and quoted cells may contain line breaks. Cells between tabs are taken as
they are, unless every cell of the header is quoted. A file beyond the limits below is refused with
one line, before it uses more memory than they allow.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import brief
from isotropy.sources import paths
from isotropy.sources.files import FormatError

SUFFIX = re.compile(r"\.(tsv|tab|csv|txt|jsonl|ndjson)(\.gz)?$", re.IGNORECASE)

MOST_RECORD = 1 << 26  # bytes of a record
MOST_CELLS = 1 << 18  # of a record
MOST_NESTED = 100  # levels of JSON
UNPACKED_FREELY = 1 << 26  # bytes that any .gz file may unpack to
UNPACKED_TIMES = 100  # beyond that, the ratio that a file may unpack to
MOST_UNPACKED = 1 << 34  # bytes that no .gz file may unpack to

STEP = 1 << 20  # bytes that are passed over at once

SNIFFED = 100  # lines used to detect the format
SNIFFED_BYTES = 1 << 20
AGREEING = 0.9  # share of these lines with as many cells as the first
SPACE = " "  # as a delimiter: any white space

MISSING = (  # spellings of a missing number, in lower case
    "", "-", "--", "?", ".", "*", "na", "n/a", "#n/a", "#na", "#n/a n/a", "n.a.", "n.a", "nan",
    "-nan", "null", "none", "nil", "missing", "unknown", "undefined", "1.#ind", "-1.#ind",
    "1.#qnan", "-1.#qnan", "<na>", "nat",
)  # fmt: skip
BLANKS = r"[^\S\x1c-\x1f]*"  # white space as float() has it: without the separators of ASCII
NUMBER = re.compile(
    BLANKS + r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)" + BLANKS,
    re.IGNORECASE,
)
WHOLE = re.compile(rf"{BLANKS}[+-]?[0-9]+{BLANKS}")
GROUPED = re.compile(  # 1,234.5 and 1.234,5 and 0,5
    r"\s*[+-]?(?:[0-9]{1,3}(?:([,'\u00a0\u202f ])[0-9]{3})(?:\1[0-9]{3})*(?:[.,][0-9]*)?"
    r"|[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]*)?|[0-9]+,[0-9]+)\s*"
)
csv.field_size_limit(max(csv.field_size_limit(), MOST_RECORD))  # one cell may hold a vector
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}\n"))
BLANK = b" \t\r"  # what JSON takes for white space within a line
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Form:
    """How the records of a file are written: as lines, as JSON, or as cells."""

    delimiter: str = ""  # of cells
    quoted: bool = False
    is_json: bool = False
    most_cells: int = 0  # of white space: the last cell takes the rest of the line


LINES = Form()
JSON = Form(is_json=True)


class Record(NamedTuple):
    """A record: the number of its first line, its bytes, and the text, object or cells in it."""

    line: int
    n_bytes: int
    held: Any

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but white space and delimiters."""
        if isinstance(self.held, list):
            return not any(cell.strip() for cell in self.held)
        return not (self.held if isinstance(self.held, dict) else self.held.strip())


def suffix(name: str) -> str:
    """The suffix that names the format, such as "csv"; "" if there is none."""
    found = SUFFIX.search(name)
    kind = found[1].lower() if found else ""
    return {"tab": "tsv", "ndjson": "jsonl"}.get(kind, kind)


def stem(name: str) -> str:
    """The name without such a suffix."""
    return SUFFIX.sub("", name)


class _Unpacked(io.RawIOBase):
    """The contents of a .gz file, unless they are out of proportion to its size."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._file = gzip.GzipFile(fileobj=packed)
        self._n_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._n_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte of the contents, by unpacking all before it."""
        assert whence == io.SEEK_SET
        if offset < self._n_bytes:
            self._n_bytes = self._file.seek(0)
        while (left := offset - self._n_bytes) > 0 and self.readinto(bytearray(min(left, STEP))):
            pass
        return self._n_bytes

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._n_bytes += len(data)
        allowed = UNPACKED_FREELY + UNPACKED_TIMES * self._packed.tell()
        if self._n_bytes > min(allowed, MOST_UNPACKED):
            raise FormatError(
                f"unpacks to more than {UNPACKED_TIMES} times its size, or to more than "
                f"{MOST_UNPACKED >> 30} GB. If you trust it, unpack it yourself."
            )
        return len(data)

    def close(self) -> None:
        self._file.close()
        self._packed.close()
        super().close()


def is_packed(path: str | Path) -> bool:
    return str(path).lower().endswith(".gz")


def open_plain(path: str | Path) -> BinaryIO:
    """The bytes of a file, unpacked if it is a .gz file."""
    file: Any = paths.open_binary(str(path))
    return io.BufferedReader(_Unpacked(file), 1 << 17) if is_packed(path) else file


def expect_bounded(path: Path) -> None:
    """Raise if a .gz file unpacks to too many bytes, before its lines are used."""
    if is_packed(path):
        with open_plain(path) as file:
            while file.read(STEP):
                pass


def too_long(line: int | None = None) -> FormatError:
    where = "" if line is None else f" in line {line}"
    return FormatError(
        f"has a record of more than {MOST_RECORD >> 20} MB{where}. Break it into lines."
    )


def raw_lines(file: BinaryIO, line: int = 1) -> Iterator[tuple[int, bytes]]:
    """(number, bytes with their line feed) of each line; raises if one is too long."""
    while raw := file.readline(MOST_RECORD + 1):
        if len(raw) > MOST_RECORD:
            raise too_long(line)
        yield line, raw
        line += 1


def decoded(raw: bytes, line: int) -> str:
    """The text of a line, without a byte order mark and the end of the line."""
    return _decoded(raw, line).removesuffix("\n").removesuffix("\r")


def _decoded(raw: bytes, line: int) -> str:
    try:
        return raw.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        wide = line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "UTF-16" if wide else f"byte 0x{raw[error.start]:02x} in line {line}"
        raise FormatError(
            f"must be UTF-8, got {what}. Convert it, as with iconv -f "
            f"{'utf-16' if wide else 'latin1'} -t utf-8."
        ) from error


def expect_utf8(data: bytes, line: int) -> None:
    """Raise if lines are not UTF-8; the first one has the number `line`."""
    if not data.isascii():
        _decoded(data, line)


def records(file: BinaryIO, form: Form, line: int = 1) -> Iterator[Record]:
    """The records from here to the end of the file; the next line has the number `line`."""
    if form.quoted:
        yield from _quoted(file, form, line)
        return
    for number, raw in raw_lines(file, line):
        text = decoded(raw, number)
        held: Any = text
        if form.is_json:
            held = json_object(text, number) if text.strip() else ""
        elif form.delimiter == SPACE:
            held = _few(text.split(None, form.most_cells - 1), number)
        elif form.delimiter:
            held = _few(text.split(form.delimiter), number) if text else []
        yield Record(number, len(raw), held)


def _few(cells: list[str], line: int) -> list[str]:
    if len(cells) > MOST_CELLS:
        raise FormatError(
            f"has more than {MOST_CELLS:,} cells in line {line}. Save so wide a table as .npy or "
            ".parquet."
        )
    return cells


def _quoted(file: BinaryIO, form: Form, line: int) -> Iterator[Record]:
    """Records whose cells may be quoted, with line breaks in them."""
    first = line
    n_lines = n_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal n_lines, n_bytes
        for number, raw in raw_lines(file, line):
            n_lines += 1
            n_bytes += len(raw)
            if n_bytes > MOST_RECORD:
                raise too_long(first)
            yield _decoded(raw, number)

    try:
        for cells in csv.reader(texts(), delimiter=form.delimiter, strict=True):
            yield Record(first, n_bytes, _few(cells, first))
            first += n_lines
            n_lines = n_bytes = 0
    except csv.Error as error:
        reason = str(error).split(" - ")[0]
        raise FormatError(
            f"must be separated by {form.delimiter!r} with every quote closed, got one record "
            f"from line {first} on that is not ({reason}). Correct it, or save it as .jsonl."
        ) from error


def expect_cells(record: Record, n_cells: int, more: bool = False) -> None:
    """Raise unless the record has `n_cells` cells; with `more`, it may have more."""
    found = len(record.held)
    if found < n_cells or (found > n_cells and not more):
        raise FormatError(
            f"must have {n_cells} cells in every line, got {found} in line {record.line}. Correct "
            "that line."
        )


def json_object(text: str, line: int) -> dict[str, Any]:
    """The object that a line holds."""
    if text.count("[") + text.count("{") > MOST_NESTED:
        expect_flat(text.encode(errors="surrogatepass"), line)
    try:
        found = json.loads(text)
        if "\\u" in text:  # only escapes can give characters that UTF-8 does not have
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"must hold whole characters, got half of one (a lone surrogate, \\ud800 to "
            f"\\udfff) in line {line}. Correct that line."
        ) from error
    except json.JSONDecodeError as error:
        raise FormatError(
            f"is not valid JSON in line {line} ({error.msg}). Correct that line."
        ) from error
    except ValueError as error:  # too many digits for Python
        raise FormatError(f"has a number of too many digits in line {line}. Shorten it.") from error
    if not isinstance(found, dict):
        raise _no_object(text, line)
    return found


def _no_object(text: str, line: int) -> FormatError:
    return FormatError(
        f"must hold a JSON object a line, got {brief(text)} in line {line}. Correct that line."
    )


def expect_objects(data: bytes, line: int) -> None:
    """Raise if a line of JSON does not begin as an object; the first one has the number `line`.

    Arrow's reader takes null for a row, and ends the process where it comes first.
    """
    for number, text in enumerate(data.split(b"\n"), line):
        if text.startswith(b"{"):
            continue
        bare = text.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip(BLANK)
        if bare and not bare.startswith(b"{"):
            raise _no_object(bare[:200].decode(errors="replace"), number)


def expect_flat(data: bytes, line: int) -> None:
    """Raise if a line of JSON is nested too deeply, or its brackets do not match.

    Parsers recurse, and a stack overflow would end the process. This takes one pass over the bytes,
    and looks closer only at lines with many or unmatched brackets.
    """
    brackets = data.translate(None, NO_BRACKETS).split(b"\n")
    if not any(map(_is_odd, set(brackets))):
        return
    for number, (text, found) in enumerate(zip(data.split(b"\n"), brackets, strict=True), line):
        if _is_odd(found):
            _expect_flat_line(text, number)


def _is_odd(brackets: bytes) -> bool:
    n_opening = brackets.count(b"[") + brackets.count(b"{")
    return n_opening > MOST_NESTED or 2 * n_opening != len(brackets)


def _expect_flat_line(text: bytes, line: int) -> None:
    bare = np.frombuffer(STRING.sub(b"", text), np.uint8)
    steps = ((bare == ord("[")) | (bare == ord("{"))).astype(np.int64)
    depth: NDArray[np.int64] = np.cumsum(steps - ((bare == ord("]")) | (bare == ord("}"))))
    if len(depth) and depth.max() > MOST_NESTED:
        raise FormatError(
            f"must not nest JSON as deeply as in line {line}: {MOST_NESTED} levels are the most. "
            "Flatten that line."
        )
    if len(depth) and (depth[-1] or depth.min() < 0):
        what = "Expecting ',' delimiter" if depth[-1] > 0 else "Extra data"
        raise FormatError(f"is not valid JSON in line {line} ({what}). Correct that line.")


def head(file: BinaryIO) -> list[str]:
    """The first lines that are not blank, used to detect the format."""
    found, n_bytes = list[str](), 0
    for line, raw in raw_lines(file):
        n_bytes += len(raw)
        text = decoded(raw, line)
        if text.strip():
            found.append(text)
        if len(found) == SNIFFED or n_bytes > SNIFFED_BYTES:
            break
    return found


def form_of(kind: str, lines: Sequence[str], n_named: int = 0) -> Form | None:
    """The format of a table with this suffix; None if no delimiter splits its lines into columns.

    `lines` are its first ones, and `n_named` is the number of columns that were named, if the file
    has no header.
    """
    if kind == "jsonl":
        return JSON
    if kind == "tsv":
        return _form("\t", lines)
    order = ",;\t" if kind == "csv" else "\t,;" + SPACE
    fitting = [found for found in order if _fits(found, lines, n_named)]
    if not fitting:
        return _form(",", lines) if kind == "csv" else None
    best = fitting[0]
    if best == "," and ";" in fitting:  # the cells between semicolons may be 1,5 and 2,5
        numbers = (cell.replace(",", ".") for cell in lines[-1].split(";"))
        best = ";" if all(map(NUMBER.fullmatch, numbers)) else ","
    return _form(best, lines, n_named)


def _form(delimiter: str, lines: Sequence[str], n_named: int = 0) -> Form:
    quoted = delimiter in ",;"
    if delimiter == "\t" and lines:  # some programs quote every cell
        quoted = all(re.fullmatch(r'".*"', cell) for cell in lines[0].split("\t"))
    return Form(delimiter, quoted, most_cells=n_named if delimiter == SPACE else 0)


def _fits(delimiter: str, lines: Sequence[str], n_named: int) -> bool:
    """Whether nearly all lines have as many cells as the first, or as were named."""
    counts = np.array([len(cells) for cells in _roughly(lines, delimiter)])
    if not len(counts):
        return False
    if n_named:  # text has commas too, so the number of cells must be exact
        agreeing = counts >= n_named if delimiter in ("\t", SPACE) else counts == n_named
    elif delimiter == "\t":  # rare in text, so more cells are allowed
        agreeing = counts >= max(2, counts[0])
    else:
        agreeing = (counts == counts[0]) & (counts[0] > 1)
    return bool(agreeing.mean() >= AGREEING)


def _roughly(lines: Sequence[str], delimiter: str) -> Iterable[list[str]]:
    """The cells of the records in these lines; the last record may be incomplete."""
    if delimiter == SPACE:
        return map(str.split, lines)
    if delimiter == "\t" or not any('"' in line for line in lines):
        return [line.split(delimiter) for line in lines]
    try:
        return list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter))
    except csv.Error:
        return []


def is_row(cells: Sequence[str]) -> bool:
    """Whether a first line is a row rather than a header: no column is called 0.25.

    Integers that count up, from 0 if there is nothing else, are the names that a data frame gives
    to unnamed columns.
    """
    if any(cell.lstrip().startswith("[") for cell in cells):
        return True
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell) and re.search("[0-9]", cell)]
    if not all(WHOLE.fullmatch(cell) for cell in numbers):
        return True
    if not numbers:
        return all(NUMBER.fullmatch(cell) for cell in cells)
    first = 0 if len(numbers) == len(cells) else int(numbers[0][:20])
    counted = [str(i) for i in range(first, first + len(numbers))]
    return numbers != counted or len(cells) == 1


def is_missing(cell: str) -> bool:
    """Whether the cell marks a missing value."""
    return cell.strip().lower() in MISSING


def number(cell: str) -> float | None:
    """The number in a cell; NaN if it is missing, None if it is not a number."""
    if NUMBER.fullmatch(cell):
        return float(cell)
    return float("nan") if is_missing(cell) else None


def no_number(cell: Any) -> str:
    """What to do about a cell that is not a number."""
    if isinstance(cell, str) and GROUPED.fullmatch(cell):
        return "Write numbers as 1234.5: a point, and nothing between thousands."
    return "Correct it, or leave the cell empty."


def unique(names: Iterable[str]) -> list[str]:
    """Names of columns; raises if two are the same."""
    found: dict[str, None] = {}
    for name in names:
        if name.strip() in found:
            raise FormatError(f"has two columns of one name, {brief(name)}. Give each its own.")
        found[name.strip()] = None
    return list(found)

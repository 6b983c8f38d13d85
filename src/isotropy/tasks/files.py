"""Files of rows: tab- or comma-separated, JSON lines, Parquet; text may be compressed (.gz).

Tab-separated lines are not quoted, comma-separated ones are; both begin with a header. Only a line
feed ends a line, and lines without text are passed over.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isotropy.errors import InputError

SUFFIX = re.compile(r"\.(?:(tsv|csv|jsonl)(?:\.gz)?|(parquet))$", re.IGNORECASE)
KINDS = ".tsv, .csv, .jsonl (each also .gz) or .parquet"

Columns = dict[str, list[Any]]


class _FormatError(ValueError):
    """What is wrong inside of a file."""


def stem(file: str) -> str:
    """The name without its suffixes."""
    return SUFFIX.sub("", file)


def read_columns(path: Path, caller: str) -> tuple[Columns, list[int]]:
    """(columns by name, number of each row's line) of a file whose name says its format."""
    found = SUFFIX.search(path.name)
    if found is None:
        raise InputError(f"{caller}: data must be a {KINDS} file, got {path.name!r}.")
    try:
        columns, lines = _FORMATS[(found[1] or found[2]).lower()](path)
    except (_FormatError, OSError, EOFError, zlib.error, pa.ArrowException, csv.Error) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{caller}: {str(path)!r} cannot be read: {reason}.") from None
    if not lines:
        raise InputError(f"{caller}: {str(path)!r} must have rows, got none.")
    return columns, lines


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _FormatError(
            f"it must be UTF-8, got byte 0x{data[error.start]:02x} in line {line}. Convert it"
        ) from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")


def _tsv(path: Path) -> tuple[Columns, list[int]]:
    return _under_header([(number, line.split("\t")) for number, line in _lines(path)])


def _csv(path: Path) -> tuple[Columns, list[int]]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    return _under_header([(reader.line_num, cells) for cells in reader if any(cells)])


def _under_header(rows: list[tuple[int, list[str]]]) -> tuple[Columns, list[int]]:
    if len(rows) < 2:
        return {}, []
    (_, header), *rows = rows
    for number, cells in rows:
        if len(cells) != len(header):
            raise _FormatError(
                f"line {number} must have {len(header)} cells, as many as the header, got "
                f"{len(cells)}. Correct that line"
            )
    columns = zip(*(cells for _, cells in rows), strict=True)
    names = [name.strip() for name in header]
    return dict(zip(names, map(list, columns), strict=True)), [number for number, _ in rows]


def _jsonl(path: Path) -> tuple[Columns, list[int]]:
    rows, lines = [], []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise _FormatError(f"line {number} is not valid JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise _FormatError(f"line {number} must be a JSON object, got {line[:30]!r}")
        rows.append(row)
        lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, lines


def _parquet(path: Path) -> tuple[Columns, list[int]]:
    table = pq.read_table(path)
    return table.to_pydict(), list(range(1, 1 + table.num_rows))


_FORMATS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "parquet": _parquet}

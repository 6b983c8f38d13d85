"""Files of rows that tasks are read from: text tables and Parquet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from isotropy.errors import InputError, brief
from isotropy.sources import tables
from isotropy.sources.files import FormatError, explained

KINDS = ".tsv, .csv, .txt, .jsonl (each also .gz) or .parquet"
PARQUET = re.compile(r"\.parquet$", re.IGNORECASE)

Columns = dict[str, list[Any]]


def is_table(name: str) -> bool:
    """Whether the name says that a file holds rows."""
    return bool(tables.suffix(name) or PARQUET.search(name))


def stem(file: str) -> str:
    """The name without its suffixes."""
    return PARQUET.sub("", tables.stem(file))


def read_columns(
    path: Path, caller: str, header: Sequence[str] | None = None
) -> tuple[Columns, list[int]]:
    """(columns by name, number of each row's line) of a file.

    A file whose suffix says nothing is read like .txt, whose delimiter is found from its lines.

    Parameters
    ----------
    path : Path
    caller : str
    header : sequence of str, optional
        Names of the first columns of a file without a header; further ones are left out, but
        where white space separates columns the last one takes the rest of the line.
    """
    if PARQUET.search(path.name):
        return _parquet(path, caller, header)
    with explained(caller, str(path), "text"):
        tables.expect_bounded(path)
        with tables.open_plain(path) as file:
            lines = _expect_text(tables.head(file), path)
        kind = tables.suffix(path.name) or "txt"
        form = tables.form_of(kind, lines, len(header or ()))
        if form is None and len(lines) > 1:
            raise FormatError(_columns_unknown(lines, header))
        if form is None:
            raise FormatError("must have rows, got none.")
        with tables.open_plain(path) as file:
            records = (record for record in tables.records(file, form) if not record.is_blank)
            columns, numbers = (
                _objects(records, header) if form.is_json else _cells(records, header)
            )
        if not numbers:
            raise FormatError("must have rows, got none.")
    return columns, numbers


def _expect_text(lines: list[str], path: Path) -> list[str]:
    if any("\0" in line for line in lines) and not tables.suffix(path.name):
        raise FormatError(f"must be a {KINDS} file, got other bytes than text.")
    return lines


def _columns_unknown(lines: list[str], header: Sequence[str] | None) -> str:
    if header:
        return (
            f"must have the {len(header)} columns of the header {brief(','.join(header))} in every "
            f"line, between tabs, commas, semicolons or spaces, got {brief(lines[0])}."
        )
    return (
        f"must have columns between tabs, commas, semicolons or spaces, got {brief(lines[0])}. "
        "Where it has no header, name its columns, as with --header label,text (header= in Python)."
    )


def _cells(records: Any, header: Sequence[str] | None) -> tuple[Columns, list[int]]:
    names = list(header) if header else []
    rows, lines = [], []
    for record in records:
        if not names:
            names = tables.unique(record.held)
            continue
        tables.expect_cells(record, len(names), more=bool(header))
        rows.append(record.held[: len(names)])
        lines.append(record.line)
    columns = zip(*rows, strict=True)
    return dict(zip(names, map(list, columns), strict=False)), lines


def _objects(records: Any, header: Sequence[str] | None) -> tuple[Columns, list[int]]:
    if header:
        raise FormatError("has names in every line, so a header does not go with it. Leave it out.")
    rows, lines = [], []
    for record in records:
        rows.append(record.held)
        lines.append(record.line)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, lines


def _parquet(path: Path, caller: str, header: Sequence[str] | None) -> tuple[Columns, list[int]]:
    with explained(caller, str(path), "Parquet"):
        if header:
            raise FormatError("has names of its own, so a header does not go with it.")
        table = pq.read_table(path)
    if not table.num_rows:
        raise InputError(f"{caller}: {str(path)!r} must have rows, got none.")
    return table.to_pydict(), list(range(1, 1 + table.num_rows))

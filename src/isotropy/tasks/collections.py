"""Files of tasks: tables, Parquet, and test collections such as SMART's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from isotropy.errors import InputError, brief
from isotropy.sources import FormatError, read_errors, tables

KINDS = ".tsv, .csv, .txt, .jsonl (each also .gz) or .parquet"
PARQUET = re.compile(r"\.parquet$", re.IGNORECASE)

Columns = dict[str, list[Any]]


def is_table(name: str) -> bool:
    """Whether the name is that of a table."""
    return bool(tables.suffix(name) or PARQUET.search(name))


def stem(file: str) -> str:
    """The name without its suffixes."""
    return PARQUET.sub("", tables.stem(file))


def read_columns(path: Path, header: Sequence[str] | None = None) -> tuple[Columns, list[int]]:
    """(columns by name, line number of each row) of a file.

    Files with other suffixes are read like .txt, whose delimiter is inferred from its lines.
    `header` names the first columns of a file without a header. Further columns are ignored, except
    that the last one takes the rest of the line if columns are separated by white space.
    """
    if PARQUET.search(path.name):
        return _parquet(path, header)
    with read_errors(str(path), "text"):
        tables.expect_bounded(path)
        with tables.open_plain(path) as file:
            lines = tables.head(file)
        kind = tables.suffix(path.name)
        if not kind and any("\0" in line for line in lines):
            raise FormatError(f"must be a {KINDS} file, got binary data.")
        form = tables.form_of(kind or "txt", lines, len(header or ()))
        if form is None and len(lines) > 1 and header:
            raise FormatError(
                f"must have the {len(header)} columns of the header {brief(','.join(header))} in "
                "every line, separated by tabs, commas, semicolons or spaces, got "
                f"{brief(lines[0])}."
            )
        if form is None and len(lines) > 1:
            raise FormatError(
                "must have columns separated by tabs, commas, semicolons or spaces, got "
                f"{brief(lines[0])}. If it has no header, name its columns, as with --header "
                "label,text (header= in Python)."
            )
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
        raise FormatError("has column names in every line, so it takes no header. Leave it out.")
    rows = [(record.held, record.line) for record in records]
    names = dict.fromkeys(name for held, _ in rows for name in held)
    columns = {name: [held.get(name) for held, _ in rows] for name in names}
    return columns, [line for _, line in rows]


def _parquet(path: Path, header: Sequence[str] | None) -> tuple[Columns, list[int]]:
    with read_errors(str(path), "Parquet"):
        if header:
            raise FormatError("has its own column names, so it takes no header. Leave it out.")
        table = pq.read_table(path)
    if not table.num_rows:
        raise InputError(f"{str(path)!r} must have rows, got none.")
    return table.to_pydict(), list(range(1, 1 + table.num_rows))


FIELD = re.compile(r"\.([A-Z])\s*$")
BEGIN = re.compile(r"\.I\s+(\S+)\s*$")
QUERIES = re.compile(r"qry|quer|topic", re.IGNORECASE)
JUDGEMENTS = re.compile(r"rel|qrel|rlv", re.IGNORECASE)
WORST = 5  # Cranfield's codes go from 1, a complete answer, to 5, of no interest
Judgements = list[tuple[str, str, float]]


def is_smart(path: Path) -> bool:
    """Whether a file can be read and begins like SMART's."""
    try:
        with open(path, "rb") as file:
            return file.read(3) == b".I "
    except OSError:
        return False


def smart_files(folder: Path) -> tuple[Path, Path, Path] | None:
    """Documents, queries and judgements of a collection in SMART's format, if it is one."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    marked = [path for path in files if is_smart(path)]
    queries = [path for path in marked if QUERIES.search(path.name)]
    documents = [path for path in marked if path not in queries]
    rest = [path for path in files if path not in marked and JUDGEMENTS.search(path.name)]
    judged = [path for path in rest if "readme" not in path.name.lower()]
    if len(documents) == len(queries) == len(judged) == 1:
        return documents[0], queries[0], judged[0]
    return None


def read_smart(path: Path) -> list[tuple[str, str, str]]:
    """(id, title, text) of each entry."""
    found: list[tuple[str, dict[str, list[str]]]] = []
    lines: list[str] | None = None
    with read_errors(str(path), "SMART"), tables.open_plain(path) as file:
        for record in tables.records(file, tables.LINES):
            begin, field = BEGIN.match(record.held), FIELD.match(record.held)
            if begin:
                found.append((begin[1], {}))
                lines = None
            elif not found:
                raise FormatError(f"must begin with .I, got {brief(record.held)}.")
            elif field:
                lines = found[-1][1].setdefault(field[1], [])
            elif lines is not None:
                lines.append(record.held.strip())
            elif record.held.strip():
                raise FormatError(
                    f"must have a field such as .W after .I, got {brief(record.held)} in line "
                    f"{record.line}. Correct that line."
                )
        if not found:
            raise FormatError("must have entries, got none.")
    return [(key, _text(fields, "T"), _text(fields, "W")) for key, fields in found]


def _text(fields: dict[str, list[str]], name: str) -> str:
    return " ".join(" ".join(fields.get(name, ())).split())


def read_judgements(path: Path) -> tuple[Judgements, list[int]] | None:
    """(judgements, their line numbers) of a file without a header, or None for other files.

    A line holds query, 0 or Q0, document and relevance (TREC); query, document, 0 and 0 (CISI and
    CACM); query, document and code from 1, the best, to 5 (Cranfield); or query and document.
    """
    with read_errors(str(path), "text"), tables.open_plain(path) as file:
        rows, lines = list[list[str]](), list[int]()
        for record in tables.records(file, tables.Form(tables.SPACE)):
            if record.is_blank:
                continue
            if not rows and not _is_judgement(record.held):
                return None
            if len(record.held) != len(rows[0] if rows else record.held):
                raise FormatError(
                    f"must have {len(rows[0])} cells in every line, got {len(record.held)} in line "
                    f"{record.line}. Correct that line."
                )
            if len(record.held) > 2 and not tables.NUMBER.fullmatch(record.held[-1]):
                raise FormatError(
                    f"must have numbers for relevance, got {brief(record.held[-1])} in line "
                    f"{record.line}. Correct that line."
                )
            rows.append(record.held)
            lines.append(record.line)
    return (_ordered(rows, "cran" in path.name.lower()), lines) if rows else None


def _is_judgement(cells: list[str]) -> bool:
    if len(cells) == 4:
        return cells[1].upper() in ("0", "Q0") or tables.number(cells[3]) is not None
    if len(cells) == 3:
        return tables.NUMBER.fullmatch(cells[2]) is not None
    return len(cells) == 2 and all(map(tables.WHOLE.fullmatch, cells))


def _ordered(rows: list[list[str]], coded: bool) -> Judgements:
    """(query, document, relevance) of rows in any of these layouts."""
    if len(rows[0]) == 2:
        return [(query, document, 1.0) for query, document in rows]
    if len(rows[0]) == 3 and coded:
        return [(query, document, WORST - abs(float(code))) for query, document, code in rows]
    if len(rows[0]) == 3:
        return [(query, document, float(gain)) for query, document, gain in rows]
    if all(float(row[3]) == 0 and tables.number(row[2]) == 0 for row in rows):
        return [(query, document, 1.0) for query, document, _, _ in rows]
    return [(query, document, float(gain)) for query, _, document, gain in rows]


def numbered(judgements: Judgements, queries: list[str], documents: list[str]) -> Judgements:
    """The judgements with the ids that queries and documents have.

    Leading zeros of numbers don't matter. If some judgements match no query id, but all are
    positions, queries are counted from 1, as in Cranfield, whose ids have gaps.
    """
    by_key = {_bare(key): key for key in queries}
    by_position = {str(i): key for i, key in enumerate(queries, 1)}
    judged = {_bare(query) for query, _, _ in judgements}
    if not judged <= by_key.keys() and judged <= by_position.keys():
        by_key = by_position
    known = {_bare(key): key for key in documents}
    return [
        (by_key.get(_bare(query), query), known.get(_bare(document), document), gain)
        for query, document, gain in judgements
    ]


def _bare(key: str) -> str:
    """An id without leading zeros, if it is a number."""
    return key.lstrip("0") or key if key.isdigit() else key


def is_judgements(path: Path) -> bool:
    """Whether the name is that of a file of judgements."""
    name = path.name.lower()
    endings = (".qrel", ".qrels", ".trec")
    return name.startswith("qrel") or name.endswith(endings) or stem(name).endswith("qrels")

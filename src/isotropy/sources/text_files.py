"""Texts in files: lines, tables with a header, and JSON lines."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotropy.errors import InputError, reason
from isotropy.sources.texts import BLOCK_SIZE, Block

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = (".txt", ".tsv", ".csv", ".jsonl", ".ndjson")
DEFAULT_COLUMNS = (("text",), ("sentence",), ("sentence1", "sentence2"), ("question",))
Record = dict[str, str]


class TextFile:
    """Texts in the records of a file, of which only positions are kept in memory.

    Parameters
    ----------
    path : path
        .txt (a text a line), .tsv or .csv (with a header), .jsonl; each also with .gz, which is
        unpacked to a temporary file. Blank texts are left out and counted.
    columns : sequence of str, optional
        Columns or fields with the texts; by default `text`, `sentence`, both of `sentence1` and
        `sentence2`, or `question`. Of several columns, a record gives its texts one by one.
    caller : str
        Name that error messages begin with.
    """

    def __init__(
        self, path: Any, columns: Sequence[str] | None = None, caller: str = "Encoder"
    ) -> None:
        self.path, self.caller = Path(os.fspath(path)), caller
        self.kind = Path(self.path.name.removesuffix(".gz")).suffix.lower() or ".txt"
        if self.kind not in KINDS:
            raise InputError(
                f"{caller}: {str(path)!r} must be a file of texts: .txt, .tsv, .csv or .jsonl, "
                f"got {self.kind!r}."
            )
        try:
            self._plain = self._unpacked() if self.path.suffix == ".gz" else self.path
            self._start, self.names = self._headed()
            self.columns = self._chosen(columns)
            self._blocks, self.n_blank = self._marked()
        except FileNotFoundError:
            raise InputError(f"{caller}: there is no file {str(path)!r}. Check the path.") from None
        except (OSError, EOFError, zlib.error) as error:
            raise self._wrong(f"must be readable ({reason(error)}).") from None
        self.n_texts = sum(n_texts for n_texts, *_ in self._blocks)
        if not self.n_texts:
            raise self._wrong("must hold texts, got none.")

    def blocks(self) -> list[Block]:
        return self._blocks

    def read(self, block: Block) -> list[str]:
        return [text for record in self._records(block) for _, text in self._texts(record)]

    def table(self, block: Block) -> pa.Table:
        """The texts, and what stands beside them, as strings.

        The texts keep the name of their column; those of several columns are in `text`, and
        `column` says which one each is from.
        """
        import pyarrow as pa

        others = [name for name in self.names if name not in (*self.columns, "text", "column")]
        found: dict[str, list[str | None]] = {name: [] for name in others}
        texts: list[str] = []
        sources: list[str] = []
        for record in self._records(block):
            for column, text in self._texts(record):
                texts.append(text)
                sources.append(column)
                for name in others:
                    found[name].append(record.get(name))
        own: dict[str, Any] = {self.columns[0]: texts}
        if len(self.columns) > 1:
            own = {"text": texts, "column": sources}
        return pa.table(own | {name: pa.array(found[name], pa.string()) for name in others})

    def _unpacked(self) -> Path:
        handle, name = tempfile.mkstemp(suffix=self.kind)
        weakref.finalize(self, lambda: Path(name).unlink(missing_ok=True))
        with os.fdopen(handle, "wb") as plain, gzip.open(self.path) as packed:
            shutil.copyfileobj(packed, plain)
        return Path(name)

    def _headed(self) -> tuple[tuple[int, int], list[str]]:
        """(offset and line number of the first record, names of the columns)."""
        if self.kind == ".txt":
            return (0, 1), ["text"]
        with open(self._plain, "rb") as file:
            records = ((line, raw) for line, raw in self._raw(file, 1) if raw.strip())
            line, raw = next(records, (1, b""))
            first = self._decoded(raw, line)
            if self.kind in (".tsv", ".csv"):
                return (file.tell(), line + raw.count(b"\n")), self._cells(first, line)
            return (0, 1), list(self._object(first, line))

    def _chosen(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        if self.kind == ".txt":
            if asked:
                raise InputError(f"{self.caller}: a .txt file has no columns, got {list(asked)}.")
            return ("text",)
        default = next((c for c in DEFAULT_COLUMNS if set(c) <= set(self.names)), ())
        found = tuple(asked) if asked else default
        missing = [column for column in found if column not in self.names]
        if not found or missing:
            wanted = ", ".join(missing) or "text, sentence or sentence1 and sentence2"
            raise self._wrong(
                f"must have the column {wanted}, got {', '.join(self.names)}. Name the one with "
                "the texts."
            )
        return found

    def _marked(self) -> tuple[list[Block], int]:
        """Blocks of (number of texts, offset, bytes, number of the first line), and blank texts."""
        blocks: list[Block] = []
        n_blank = count = n_bytes = 0
        offset, first = self._start
        with open(self._plain, "rb") as file:
            file.seek(offset)
            for line, raw in self._raw(file, first):
                n_found = sum(1 for _ in self._texts(self._record(raw, line)))
                n_blank += len(self.columns) - n_found
                count += n_found
                n_bytes += len(raw)
                if n_bytes >= BLOCK_SIZE:
                    blocks.append((count, offset, n_bytes, first))
                    offset, first = offset + n_bytes, line + raw.count(b"\n")
                    count = n_bytes = 0
        blocks.append((count, offset, n_bytes, first))
        return [block for block in blocks if block[0]], n_blank

    def _records(self, block: Block) -> Iterator[Record]:
        _, offset, n_bytes, line = block
        with open(self._plain, "rb") as file:
            file.seek(offset)
            data = file.read(n_bytes)
        for number, raw in self._raw(io.BytesIO(data), line):
            yield self._record(raw, number)

    def _raw(self, lines: Iterable[bytes], first: int) -> Iterator[tuple[int, bytes]]:
        """(number of its first line, bytes) of each record: of CSV, quoted line breaks included."""
        if self.kind != ".csv":
            yield from enumerate(lines, first)
            return
        number, held = first, list[bytes]()

        def taken() -> Iterator[str]:
            for line in lines:
                held.append(line)
                shown = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield shown.decode("latin-1")  # in which quotes and commas are those of UTF-8

        reader = csv.reader(taken(), strict=True)
        while self._next(reader, number) is not None:
            yield number, b"".join(held)
            number += len(held)
            held.clear()

    def _next(self, reader: Iterator[list[str]], line: int) -> list[str] | None:
        """The cells of the next record, None after the last one."""
        try:
            return next(reader, None)
        except csv.Error as error:
            raise self._wrong(
                f"must be comma-separated with every quote closed, got one record from line {line} "
                f"on that is not ({error}). Correct it, or save the texts as .jsonl."
            ) from None

    def _record(self, raw: bytes, line: int) -> Record:
        text = self._decoded(raw, line)
        if not text.strip():
            return {}
        if self.kind == ".txt":
            return {"text": text}
        if self.kind in (".jsonl", ".ndjson"):
            return self._fields(self._object(text, line), line)
        cells = self._cells(text, line)
        if len(cells) != len(self.names):
            raise self._wrong(
                f"must have {len(self.names)} cells a line, got {len(cells)} in line {line}."
            )
        return dict(zip(self.names, cells, strict=True))

    def _texts(self, record: Record) -> Iterator[tuple[str, str]]:
        """(column, text) of the texts of a record that are not blank."""
        for column in self.columns:
            text = record.get(column, "").strip()
            if text:
                yield column, text

    def _cells(self, text: str, line: int) -> list[str]:
        text = text.rstrip("\r\n")
        if self.kind == ".tsv":
            return text.split("\t")
        return self._next(csv.reader([text], strict=True), line) or []

    def _object(self, text: str, line: int) -> dict[str, Any]:
        try:
            found = json.loads(text)
            if "\\u" in text:  # the only way to characters that UTF-8 does not have
                json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise self._wrong(
                f"must hold whole characters, got half of one (a lone surrogate, \\ud800 to "
                f"\\udfff) in line {line}. Correct that line."
            ) from None
        except RecursionError:
            raise self._nested(line) from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._wrong(f"must hold a JSON object a line, got something else in line {line}.")
        return found

    def _fields(self, found: dict[str, Any], line: int) -> Record:
        """The fields as strings, without those that are null."""
        for column in self.columns:
            value = found.get(column)
            if value is not None and not isinstance(value, str):
                raise self._wrong(
                    f"must hold text in {column!r}, got {type(value).__name__} in line {line}."
                )
        there = {name: value for name, value in found.items() if value is not None}
        try:
            return {k: v if isinstance(v, str) else json.dumps(v) for k, v in there.items()}
        except RecursionError:
            raise self._nested(line) from None

    def _decoded(self, raw: bytes, line: int) -> str:
        try:
            return raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            line += raw[: error.start].count(b"\n")
            raise self._wrong(
                f"must be UTF-8, got other bytes in line {line}. Convert it, as with "
                "iconv -f latin1 -t utf-8."
            ) from None

    def _nested(self, line: int) -> InputError:
        return self._wrong(f"must not nest JSON as deeply as in line {line}. Flatten that line.")

    def _wrong(self, what: str) -> InputError:
        return InputError(f"{self.caller}: {str(self.path)!r} {what}")

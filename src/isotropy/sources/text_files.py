"""Texts in files: lines, tables with a header, and JSON lines."""

from __future__ import annotations

import io
import json
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotropy.errors import InputError, brief
from isotropy.sources import tables
from isotropy.sources.files import FormatError, explained, listed
from isotropy.sources.tables import Form, Record
from isotropy.sources.texts import BLOCK_SIZE, Block

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_COLUMNS = (("text",), ("sentence",), ("sentence1", "sentence2"), ("question",))
Fields = dict[str, str]


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
        bare = Path(self.path.name.removesuffix(".gz")).suffix
        self.kind = tables.suffix(self.path.name) or ("" if bare else "txt")
        if not self.kind:
            raise InputError(
                f"{caller}: {str(path)!r} must be a file of texts: .txt, .tsv, .csv or .jsonl, "
                f"got {brief(bare)}."
            )
        with explained(caller, str(self.path), "text"):
            packed = self.path.suffix.lower() == ".gz"
            self._plain = self._unpacked() if packed else self.path
            self._form = self._written()
            self._start, self.names = self._headed()
            self.columns = self._chosen(columns)
            self._blocks, self.n_blank = self._marked()
            self.n_texts = sum(n_texts for n_texts, *_ in self._blocks)
            if not self.n_texts:
                raise FormatError("must hold texts, got none.")

    def blocks(self) -> list[Block]:
        return self._blocks

    def read(self, block: Block) -> list[str]:
        return [text for fields in self._records(block) for _, text in self._texts(fields)]

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
        handle, name = tempfile.mkstemp(suffix=f".{self.kind}")
        weakref.finalize(self, lambda: Path(name).unlink(missing_ok=True))
        with os.fdopen(handle, "wb") as plain, tables.open_plain(self.path) as packed:
            while data := packed.read(1 << 20):
                plain.write(data)
        return Path(name)

    def _written(self) -> Form:
        if self.kind == "txt":
            return tables.LINES
        with open(self._plain, "rb") as file:
            form = tables.form_of(self.kind, tables.head(file))
        assert form is not None  # as only .txt files may have any delimiter
        return form

    def _headed(self) -> tuple[tuple[int, int], list[str]]:
        """(offset and line number of the first record, names of the columns)."""
        if self.kind == "txt":
            return (0, 1), ["text"]
        offset = 0
        with open(self._plain, "rb") as file:
            for record in tables.records(file, self._form):
                offset += record.n_bytes
                if record.is_blank:
                    continue
                if self._form.is_json:
                    return (0, 1), list(record.held)
                n_lines = self._plain_lines(offset - record.n_bytes, record.n_bytes)
                return (offset, record.line + n_lines), tables.unique(record.held)
        return (0, 1), []

    def _plain_lines(self, offset: int, n_bytes: int) -> int:
        with open(self._plain, "rb") as file:
            file.seek(offset)
            return file.read(n_bytes).count(b"\n")

    def _chosen(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        if self.kind == "txt":
            if asked:
                raise InputError(f"{self.caller}: a .txt file has no columns, got {list(asked)}.")
            return ("text",)
        default = next((c for c in DEFAULT_COLUMNS if set(c) <= set(self.names)), ())
        found = tuple(asked) if asked else default
        missing = [column for column in found if column not in self.names]
        if not found or missing:
            wanted = listed(missing, 5) if missing else "text, sentence or sentence1 and sentence2"
            raise FormatError(
                f"must have the column {wanted}, got {listed(self.names, 9)}. Name the one with "
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
            for record in tables.records(file, self._form, first):
                if n_bytes >= BLOCK_SIZE:
                    blocks.append((count, offset, n_bytes, first))
                    offset, first = offset + n_bytes, record.line
                    count = n_bytes = 0
                n_found = sum(1 for _ in self._texts(self._fields(record)))
                n_blank += len(self.columns) - n_found
                count += n_found
                n_bytes += record.n_bytes
        blocks.append((count, offset, n_bytes, first))
        return [block for block in blocks if block[0]], n_blank

    def _records(self, block: Block) -> Iterator[Fields]:
        _, offset, n_bytes, line = block
        with explained(self.caller, str(self.path), "text"):
            with open(self._plain, "rb") as file:
                file.seek(offset)
                data = file.read(n_bytes)
            for record in tables.records(io.BytesIO(data), self._form, line):
                yield self._fields(record)

    def _fields(self, record: Record) -> Fields:
        """The cells or fields of a record by name, without those that are null."""
        if record.is_blank:
            return {}
        if self.kind == "txt":
            return {"text": record.held}
        if not self._form.is_json:
            tables.expect_cells(record, len(self.names))
            return dict(zip(self.names, record.held, strict=True))
        for column in self.columns:
            value = record.held.get(column)
            if value is not None and not isinstance(value, str):
                raise FormatError(
                    f"must hold text in {brief(column)}, got {type(value).__name__} in line "
                    f"{record.line}."
                )
        there = {name: value for name, value in record.held.items() if value is not None}
        return {k: v if isinstance(v, str) else json.dumps(v) for k, v in there.items()}

    def _texts(self, fields: Fields) -> Iterator[tuple[str, str]]:
        """(column, text) of the texts of a record that are not blank."""
        for column in self.columns:
            text = fields.get(column, "").strip()
            if text:
                yield column, text

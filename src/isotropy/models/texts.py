"""Texts in a list or a file, and words inside texts."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, brief
from isotropy.sources import FormatError, Record, listed, read_errors, tables

if TYPE_CHECKING:
    import pyarrow as pa


BLOCK_SIZE = 1 << 17  # characters or bytes in a block: about 30,000 tokens of English
LINES_NAMED = 5  # of those with blank texts
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which UTF-8 can't encode
Block = tuple[int, ...]  # number of texts, then where they are


@dataclass(frozen=True)
class Span:
    """The characters `start` to `end` of a text: one occurrence of a word in context."""

    text: str
    start: int
    end: int


Text = str | Span


def distinct(texts: Sequence[Text]) -> tuple[list[Text], dict[Text, int]]:
    """The distinct texts in order of first appearance, and the position of each."""
    numbers: dict[Text, int] = {}
    for text in texts:
        numbers.setdefault(text, len(numbers))
    return list(numbers), numbers


def expect_texts(texts: Any, name: str) -> list[Text]:
    """The texts as a list; raise if it holds anything else."""
    found = checks.listing(texts, name)
    for number, text in enumerate(found):
        if not isinstance(text, (str, Span)):
            raise InputError(
                f"{name} must be strings, got {type(text).__name__} in place {number}."
            )
    return found


class TextList:
    """Texts in memory; none may be blank."""

    n_blank = 0
    blank_lines: Sequence[int] = ()

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = expect_texts(texts, "texts")
        if not self.texts:
            raise InputError("texts must have at least one text, got none.")
        plain = [plain_text(text) for text in self.texts]
        for number, text in enumerate(plain):
            if not text.strip():
                raise InputError(
                    f"texts must not be blank, got a blank one in place {number} "
                    "(counted from 0). Leave it out."
                )
            if SURROGATE.search(text):
                raise InputError(
                    "texts must hold whole characters, got half of one (a lone surrogate, \\ud800 "
                    f"to \\udfff) in place {number} (counted from 0). Correct that text."
                )
        ends = np.cumsum([len(text) for text in plain])
        edges = [0, *(np.flatnonzero(np.diff(ends // BLOCK_SIZE)) + 1).tolist(), len(plain)]
        self.blocks: list[Block] = [(b - a, a) for a, b in itertools.pairwise(edges)]
        self.n_texts = len(self.texts)

    def read(self, block: Block) -> Sequence[Text]:
        n_texts, start = block
        return self.texts[start : start + n_texts]

    def table(self, block: Block) -> pa.Table:
        import pyarrow as pa

        return pa.table({"text": [occurrence(text) for text in self.read(block)]})


def plain_text(text: Text) -> str:
    """The text itself, or the text that contains the span."""
    return text.text if isinstance(text, Span) else text


def occurrence(text: Text) -> str:
    """The text itself, or the characters of the span."""
    return text.text[text.start : text.end] if isinstance(text, Span) else text


def open_texts(texts: Any, columns: Sequence[str] | None = None) -> Texts:
    """Open a list of texts, or a file of texts."""
    if isinstance(texts, Texts):
        return texts
    if isinstance(texts, str) and " " in texts and not os.path.exists(texts):
        raise InputError(
            f"there is no file {texts[:60]!r}. Check the path, or give texts in a list."
        )
    if isinstance(texts, (str, os.PathLike)):
        return TextFile(texts, columns)
    if columns is not None:
        raise InputError("columns are for files, got a list of texts. Leave them out.")
    return TextList(texts)


def each(texts: Texts) -> Iterator[Text]:
    """Every text, in order."""
    for block in texts.blocks:
        yield from texts.read(block)


def sample_texts(texts: Texts, n_most: int | None, seed: int = 0) -> list[Text]:
    """At most n_most texts in order, drawn at random without replacement; all for None."""
    if n_most is None or texts.n_texts <= n_most:
        return list(each(texts))
    drawn = np.random.default_rng(seed).choice(texts.n_texts, n_most, replace=False)
    kept: NDArray[np.bool_] = np.zeros(texts.n_texts, dtype=bool)
    kept[drawn] = True
    return list(itertools.compress(each(texts), kept))


DEFAULT_COLUMNS = (("text",), ("sentence",), ("sentence1", "sentence2"), ("question",))
Fields = dict[str, str]


class TextFile:
    """Texts in the records of a file; only their positions are kept in memory.

    The file is .txt (one text per line), .tsv or .csv (with a header) or .jsonl, optionally
    compressed (.gz: unpacked to a temporary file). Blank texts are left out and counted, and
    `blank_lines` has the lines of the first few. A record has one text per column: by default
    `text`, `sentence`, both `sentence1` and `sentence2`, or `question`.
    """

    def __init__(self, path: Any, columns: Sequence[str] | None = None) -> None:
        self.path = Path(os.fspath(path))
        bare = Path(self.path.name.removesuffix(".gz")).suffix
        self.kind = tables.suffix(self.path.name) or ("" if bare else "txt")
        if not self.kind:
            raise InputError(
                f"{str(path)!r} must be a file of texts: .txt, .tsv, .csv or .jsonl, "
                f"got {brief(bare)}."
            )
        with read_errors(str(self.path), "text"):
            packed = self.path.suffix.lower() == ".gz"
            self._plain = self._unpacked() if packed else self.path
            self._form = tables.LINES
            if self.kind != "txt":
                with open(self._plain, "rb") as file:
                    form = tables.form_of(self.kind, tables.head(file))
                assert form is not None  # as only .txt files may have any delimiter
                self._form = form
            self._start, self.names = self._headed()
            self.columns = self._chosen(columns)
            self.blank_lines: list[int] = []
            self.blocks, self.n_blank = self._marked()
            self.n_texts = sum(n_texts for n_texts, *_ in self.blocks)
            if not self.n_texts:
                raise FormatError("must hold texts, got none.")

    def read(self, block: Block) -> list[str]:
        return [text for fields in self._records(block) for _, text in self._texts(fields)]

    def table(self, block: Block) -> pa.Table:
        """The texts and the other columns, as strings.

        The texts keep the name of their column. If there are several, all texts are in `text`, and
        `column` says which column each comes from.
        """
        import pyarrow as pa

        rows = [(*own, record) for record in self._records(block) for own in self._texts(record)]
        found: dict[str, Any] = {self.columns[0]: [text for _, text, _ in rows]}
        if len(self.columns) > 1:
            found = {"text": found[self.columns[0]], "column": [column for column, _, _ in rows]}
        others = [name for name in self.names if name not in (*self.columns, "text", "column")]
        for name in others:
            found[name] = pa.array([record.get(name) for _, _, record in rows], pa.string())
        return pa.table(found)

    def _unpacked(self) -> Path:
        handle, name = tempfile.mkstemp(suffix=f".{self.kind}")
        weakref.finalize(self, lambda: Path(name).unlink(missing_ok=True))
        with os.fdopen(handle, "wb") as plain, tables.open_plain(self.path) as packed:
            shutil.copyfileobj(packed, plain)
        return Path(name)

    def _headed(self) -> tuple[tuple[int, int], list[str]]:
        """((offset, line number) of the first record, column names)."""
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
                raise InputError(f"a .txt file has no columns, got {list(asked)}.")
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
        """Blocks of (number of texts, offset, bytes, first line), and the number of blank texts."""
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
                n_missing = len(self.columns) - n_found
                n_blank += n_missing
                if len(self.blank_lines) < LINES_NAMED:
                    self.blank_lines += [record.line] * n_missing
                count += n_found
                n_bytes += record.n_bytes
        blocks.append((count, offset, n_bytes, first))
        return [block for block in blocks if block[0]], n_blank

    def _records(self, block: Block) -> Iterator[Fields]:
        _, offset, n_bytes, line = block
        with read_errors(str(self.path), "text"):
            with open(self._plain, "rb") as file:
                file.seek(offset)
                data = file.read(n_bytes)
            for record in tables.records(io.BytesIO(data), self._form, line):
                yield self._fields(record)

    def _fields(self, record: Record) -> Fields:
        """The cells or fields of a record by name, without null values."""
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
        """(column, text) for each text of a record that is not blank."""
        for column in self.columns:
            text = fields.get(column, "").strip()
            if text:
                yield column, text


Texts = TextList | TextFile  # in blocks of bounded size, which can be read repeatedly

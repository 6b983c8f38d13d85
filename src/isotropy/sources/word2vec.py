"""word2vec's text and binary files and GloVe's text: a word, then its vector."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from isotropy.errors import InputError, brief
from isotropy.sources import paths
from isotropy.sources.base import default_rows
from isotropy.sources.csv import LinesFile, first_lines, mark, marked, parse, text_rows
from isotropy.sources.files import PICKLED, TRUNCATED, Column, File, FormatError, Matrix
from isotropy.sources.sinks import Sink

WORD = "word"
BLOCK = 1 << 24
SLACK = 64  # bytes of white space that may follow the last row
BLANK = re.compile(rb"\n[ \t\r\v\f]+(?=\n|\Z)")
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class WordsFile(LinesFile):
    """Lines of a word and its values, separated by single spaces; words may contain spaces."""

    kind: str = "word2vec text"
    dtype: str = "float32"
    others: tuple[tuple[str, str], ...] = ((WORD, "string"),)

    def decode(
        self, data: bytes, first_row: int, n_rows: int, offset: int, carry: bool
    ) -> tuple[Matrix, pa.Table | None]:
        data = data.replace(b"\r\n", b"\n")
        data = BLANK.sub(b"", b"\n" + data)[1:]
        data = data.replace(b" \n", b"\n").rstrip(b" ")  # fastText ends lines with a space
        names = [WORD, *map(str, range(self.n_features))]
        types = dict.fromkeys(names[1:], pa.float32()) | {WORD: pa.string()}
        try:
            table = parse(data, " ", names, types, names if carry else names[1:], quote=False)
        except pa.ArrowInvalid:
            words, rows = self._carefully(data, first_row)
            return rows, pa.table({WORD: words}) if carry else None
        rows = np.empty((table.num_rows, self.n_features), np.float32)
        for j, name in enumerate(names[1:]):
            rows[:, j] = table.column(name).to_numpy()
        return rows, table.select([WORD]) if carry else None

    def _carefully(self, data: bytes, first_row: int) -> tuple[list[str], Matrix]:
        """Words and rows if a word contains spaces or bytes that are not UTF-8."""
        lines = [line for line in data.split(b"\n") if line]
        words: list[str] = []
        rows = np.empty((len(lines), self.n_features), np.float32)
        for i, line in enumerate(lines):
            word, *values = line.rstrip(b" ").rsplit(b" ", self.n_features)
            try:
                too_few = len(values) < self.n_features  # numpy would repeat a single value
                if too_few or b"_" in b"".join(values) or ends_in_number(word):
                    raise ValueError(line)
                rows[i] = _nearest(values)
            except ValueError as error:
                raise FormatError(
                    f"must have a word and {_numbers(self.n_features)} in row {first_row + i}, got "
                    f"{brief(line[:200].decode(errors='replace'))}. Correct that line, or the "
                    "numbers in the first one."
                ) from error
            words.append(word.decode(errors="replace"))
        return words, rows


@dataclass(frozen=True, kw_only=True)
class BinaryWordsFile(WordsFile):
    """Words that end in a space, each followed by its values in float32."""

    kind: str = "word2vec binary"

    def decode(
        self, data: bytes, first_row: int, n_rows: int, offset: int, carry: bool
    ) -> tuple[Matrix, pa.Table | None]:
        words: list[str] = []
        rows = np.empty((n_rows, self.n_features), np.float32)
        values, position = 4 * self.n_features, 0
        for i in range(n_rows):
            begin = data.find(b" ", position) + 1
            if not begin or begin + values > len(data):
                raise FormatError(TRUNCATED)
            if carry:
                words.append(data[position : begin - 1].lstrip(b"\n").decode(errors="replace"))
            rows[i] = np.frombuffer(data, "<f4", self.n_features, begin)
            position = begin + values
        return rows, pa.table({WORD: words}) if carry else None


def open_words(path: str, column: Column, chunk_rows: int | None) -> File:
    lines = first_lines(path).split(b"\n")[:100]
    n_rows, n_features = _sizes(lines[0]) or (None, 0)
    start = len(lines[0]) + 1 if n_rows is not None else 0
    rows = [line.split() for line in lines[n_rows is not None :] if line.strip()]
    fewest = min((len(row) - 1 for row in rows), default=0)
    if n_rows is None:
        n_features = fewest
        firsts = [row[0] for row in rows]
        if n_features < 1 or all(map(_is_number, firsts)) or not _is_number(rows[0][-1]):
            raise FormatError("has no words followed by numbers. Save a matrix as .npy or .csv.")
    elif not rows or len(rows[0]) <= n_features:
        raise FormatError(
            f"has {_numbers(len(rows[0]) - 1 if rows else 0)} in its first row, and its header "
            f"promises {n_features}. Correct the header, or copy it again."
        )
    marks = mark(path, start, chunk_rows or text_rows(n_features))
    file = WordsFile(path=path, n_features=n_features, chunk_rows=chunk_rows, **marked(marks))
    if n_rows not in (None, file.n_rows):
        raise FormatError(
            f"has {file.n_rows} rows, and its header promises {n_rows}. Copy it again."
        )
    return file


def open_binary_words(path: str, column: Column, chunk_rows: int | None) -> File:
    header = paths.read_bytes(path, 0, 64).split(b"\n", 1)[0]
    sizes = _sizes(header)
    if header.startswith((b"PK\3\4", b"\x80")):  # as torch and pickle begin
        raise FormatError(PICKLED)
    if sizes is None:
        raise FormatError("does not begin with the numbers of rows and of features, as word2vec's.")
    n_rows, n_features = sizes
    size, *_ = paths.stamp(path)
    start = len(header) + 1
    if n_rows * (1 + 4 * n_features) > size - start:
        raise FormatError(
            f"is truncated: its {size} bytes cannot hold {n_rows} rows of {n_features} features, "
            "as its header promises. Copy it again."
        )
    marks = tuple(_mark_binary(path, start, n_rows, n_features, chunk_rows))
    end = sum(marks[-1][1:]) if marks else start
    if paths.read_bytes(path, end, 1 + SLACK).strip() or size > end + SLACK:
        raise FormatError(
            f"has more than the {n_rows} rows of {n_features} features that its header promises. "
            "Correct the header, or copy it again."
        )
    return BinaryWordsFile(
        path=path, n_rows=n_rows, n_features=n_features, chunk_rows=chunk_rows, marks=marks
    )


def _mark_binary(
    path: str, start: int, n_rows: int, n_features: int, chunk_rows: int | None
) -> Iterator[tuple[int, int, int]]:
    rows, values = chunk_rows or default_rows(n_features), 4 * n_features
    data, origin, position, begin = b"", start, 0, start
    with paths.open_binary(path) as file:
        file.seek(start)
        for i in range(1, n_rows + 1):
            space = data.find(b" ", position)
            if space < 0 or space + 1 + values > len(data):
                more = file.read(max(BLOCK, 2 * values))
                data, origin, position = data[position:] + more, origin + position, 0
                space = data.find(b" ")
                if space < 0 or space + 1 + values > len(data):
                    raise FormatError(
                        f"is truncated: {i - 1} of {n_rows} rows are there. Copy it again."
                    )
            word = data[position:space].lstrip(b"\n")
            if b"\n" in word or b"\0" in word:
                raise FormatError(
                    f"must have a word before row {i - 1}, got {brief(word[:100])}. Check whether "
                    f"its rows have {n_features} features, as its header promises."
                )
            position = space + 1 + values
            if i % rows == 0 or i == n_rows:
                end = origin + position
                yield i - (i - 1) // rows * rows, begin, end - begin
                begin = end


def _sizes(line: bytes) -> tuple[int, int] | None:
    """(rows, features) in a header; None if the line is not a header."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    if max(map(len, parts)) > 18:
        raise FormatError(f"begins with {brief(line[:100])}, and no file has as many rows.")
    n_rows, n_features = map(int, parts)
    if not n_features:
        raise FormatError("has a header that promises rows of 0 features. Correct it.")
    return n_rows, n_features


def _numbers(n: int) -> str:
    return f"{n or 'no'} number{'s' * (n != 1)}"


def ends_in_number(word: bytes) -> bool:
    """Whether a word with spaces ends in a number, so that it may be the first of its values."""
    return b" " in word and NUMBER.fullmatch(word.rsplit(b" ", 1)[1]) is not None


def _nearest(values: list[bytes]) -> NDArray[np.float32]:
    """The float32 nearest to each decimal, which the nearest to its float64 need not be."""
    doubles = np.array([float(value) for value in values])
    with np.errstate(over="ignore", invalid="ignore"):
        singles = doubles.astype(np.float32)
        beyond = np.nextafter(singles, np.where(doubles > singles, np.inf, -np.inf), dtype="f4")
        halfway = doubles - singles == beyond - doubles
    for i in np.flatnonzero(halfway):
        exact, double = Decimal(values[i].decode()), doubles[i]
        if exact != double:  # which compares all digits
            singles[i] = np.nextafter(double, np.inf if exact > double else -np.inf)
    return singles


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class WordsSink(Sink):
    """word2vec's text: "n d", then lines of the carried word and its values."""

    def _begin(self) -> None:
        if self.expected_rows is None:
            self.expected_rows = 10**15  # leaves room for any number of rows
        self.width = len(f"{self.expected_rows} {self.n_features}")
        self.file.write(b" " * self.width + b"\n")

    def _write(self, rows: NDArray[Any], carried: pa.Table | None) -> None:
        if carried is None or "word" not in carried.column_names:
            raise InputError(
                f"{self.path!r} needs words, and the input has no column 'word'. "
                "Write .npy or .parquet instead."
            )
        words = [str(word) for word in carried.column("word").to_pylist()]
        if any("\n" in word for word in words):
            raise InputError("words must have no line break. Write .parquet.")
        for word in words:
            if ends_in_number(word.encode()):
                raise InputError(
                    f"words must not end in a space and a number, which readers "
                    f"take for a value, got {brief(word)}. Write .parquet."
                )
        kind = np.float64 if self.dtype == "float64" else np.float32
        columns = [pa.array(column) for column in rows.T.astype(kind)]
        text = io.BytesIO()
        options = csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
        csv.write_csv(pa.table(columns, names=list(map(str, range(len(columns))))), text, options)
        lines = text.getvalue().split(b"\n")
        for word, line in zip(words, lines, strict=False):
            self.file.write(b"%s %s\n" % (word.encode(), line))

    def _finish(self) -> None:
        self.file.seek(0)
        self.file.write(f"{self.n_rows} {self.n_features}".ljust(self.width).encode())

"""Rows that are lines of text: one pass over the bytes finds where each chunk begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotropy.sources import paths
from isotropy.sources.base import CHUNK_BYTES
from isotropy.sources.files import File

BLOCK = 1 << 24
TEXT_BYTES = 16  # that a number takes in text, so that a chunk holds about CHUNK_BYTES of it


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


def first_lines(path: str, n_bytes: int = 1 << 20) -> bytes:
    """Whole lines from the beginning of the file, at least one."""
    with paths.open_binary(path) as file:
        data = file.read(n_bytes)
        while b"\n" not in data:
            more = file.read(n_bytes)
            if not more:
                return data
            data += more
        more = file.read(1)
    return data if not more else data[: data.rindex(b"\n") + 1]


def mark(
    path: str, start: int, rows: int, quoted: bool = False
) -> tuple[tuple[int, int, int], ...]:
    """Pieces of `rows` lines each from byte `start` on; empty lines are not counted.

    Where `quoted`, a line break between double quotes is part of a value.
    """
    marks: list[tuple[int, int, int]] = []
    begin, count = start, 0
    for ends in _line_ends(path, start, quoted):
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


def _line_ends(path: str, start: int, quoted: bool) -> Iterator[NDArray[np.int64]]:
    """Offsets just after the lines that are not empty, block by block."""
    line, inside, tail, last = start, False, False, 0
    with paths.open_binary(path) as file:
        file.seek(start)
        offset = start
        while block := file.read(BLOCK):
            data = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero(data == ord("\n"))
            if quoted and (inside or b'"' in block):
                odd = (np.cumsum(data == ord('"'), dtype=np.uint8) + np.uint8(inside)) % 2 == 1
                ends, inside = ends[~odd[ends]], bool(odd[-1])
            lengths = np.diff(ends + offset, prepend=line - 1) - 1
            returns = (lengths == 1) & (np.where(ends, data[ends - 1], last) == ord("\r"))
            last = int(data[-1])
            if len(ends):
                line = offset + int(ends[-1]) + 1
            offset += len(block)
            tail = bool(block[ends[-1] + 1 if len(ends) else 0 :].strip()) or (
                tail and not len(ends)
            )
            yield ends[(lengths > 0) & ~returns] + (offset - len(block) + 1)
    if tail:
        yield np.array([offset])

"""Vectors in files: everything that formats share, except decoding rows."""

from __future__ import annotations

import copy
import json
import os
import sys
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import InputError, brief, one_line
from isotropy.sources import paths
from isotropy.sources.base import (
    Batch,
    Chunk,
    Room,
    Source,
    default_rows,
    finite_only,
    source_weights,
)
from isotropy.stored import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

Column = str | Sequence[str] | None
Matrix = NDArray[Any]
Place = tuple[int, ...]  # where a piece of a file is
Pieces = Iterator[tuple[Matrix, "pa.Table | None"]]
TRUNCATED = "is truncated: it ended in the middle of its rows. Copy it again."
ORIGIN = "isotropy.origin"  # in the metadata of a file: how its vectors were made
PICKLED = (
    "is a pickle, which can run any code when it is loaded. If you trust it, load it yourself and "
    "save its vectors as .npy or .safetensors."
)
LISTED = 200  # characters of names in a message


class FormatError(ValueError):
    """What is wrong with a file and what to do about it; the path is prepended."""


@dataclass(frozen=True, kw_only=True)
class File(ABC):
    """One file of rows, as plain values: a subclass for each format knows how to decode it.

    A format defines `read`, and `pieces` if it cannot start at any row. `stamp` identifies the file
    as it was opened, `features` are the columns that hold the vectors, one per feature unless there
    is a `column` of lists, and `others` are the (name, type) of all other columns, with an empty
    type if it is only guessed. `origin` is the JSON text that a sink wrote under that name.
    """

    kind: str
    path: str
    n_rows: int
    n_features: int
    dtype: str
    column: str | None = None
    chunk_rows: int | None = None
    stamp: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    origin: str = ""

    @property
    def rows_at_once(self) -> int:
        return self.chunk_rows or default_rows(self.n_features)

    def now(self) -> tuple[int, ...]:
        """What identifies the file as it is now, to be compared with `stamp`."""
        return paths.stamp(self.path)

    def pieces(self) -> list[tuple[int, Place]]:
        """(number of rows, place) of consecutive pieces of the file."""
        starts = range(0, self.n_rows, self.rows_at_once)
        return [(min(self.rows_at_once, self.n_rows - start), ()) for start in starts]

    def coarse(self) -> File:
        """The same file, in larger pieces if it is cut into small ones."""
        return self

    @property
    def stored_bytes(self) -> int:
        """Size of a stored row, if any rows can be read as stored by `read_stored`; else zero."""
        return 0

    def read_stored(self, first_row: int, n_rows: int, room: Room) -> Pieces:
        """The rows as they are stored, in memory that `room(shape, dtype)` gives."""
        raise NotImplementedError

    def checksum(self, rows: Matrix) -> int:
        """That of rows which may change without a change of what `now` returns; else 0."""
        return 0

    @abstractmethod
    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        """The rows of a piece in bounded parts, with their other columns if `carry` is set."""


class FileSource(Source):
    """The rows of one or more files, one after the other.

    Reading is thread-safe, and the source pickles as paths and numbers only. The column that was
    `asked` for is part of its identity; for the other options, see `isotropy.open`.
    """

    def __init__(
        self,
        files: Sequence[File],
        *,
        skip_bad_rows: bool = False,
        sample_weight: object = None,
        asked: Column = None,
    ) -> None:
        self.files, self.asked, self.carry = tuple(files), asked, True
        self.skip_bad_rows = checks.flag(skip_bad_rows, "skip_bad_rows")
        first, *others = self.files
        for path, n_times in Counter(file.path for file in self.files).items():
            if n_times > 1:
                raise InputError(f"{path!r} is listed twice. List each file once.")
        for file in others:
            if file.n_features != first.n_features:
                raise InputError(
                    f"{file.path!r} has {file.n_features} features, but {first.path!r} "
                    f"has {first.n_features}. Files of one source must have the same width."
                )
            if (file.column, file.features) != (first.column, first.features):
                here, there = (listed(x.features or [x.column], 5) for x in (file, first))
                raise InputError(
                    f"{file.path!r} has its vectors in {here}, but {first.path!r} in {there}. "
                    "Files of one source must have them in the same columns, in the same order."
                )
        self._differing = self._differing_others()
        starts = np.cumsum([0] + [file.n_rows for file in self.files]).tolist()
        self.n_samples, self.n_features = starts[-1], first.n_features
        dtypes = {file.dtype for file in self.files}
        computed = "float64" if any(map(wide, dtypes)) else "float32"
        self.dtype, self.column = dtypes.pop() if len(dtypes) == 1 else computed, first.column
        self.paths = tuple(file.path for file in self.files)
        self._places = {file.path: (file, start) for file, start in zip(self.files, starts)}  # noqa: B905
        self.weights = source_weights(sample_weight, self.n_samples)

    def bare(self) -> Self:
        other = copy.copy(self)
        other.carry = False
        return other

    def coarse(self) -> Self:
        other = copy.copy(self)
        other.files = tuple(file.coarse() for file in self.files)
        starts = (start for _, start in self._places.values())
        other._places = {f.path: (f, start) for f, start in zip(other.files, starts, strict=True)}
        return other

    def chunks(self) -> list[Chunk]:
        found = []
        for file, start in self._places.values():
            for n_rows, place in file.pieces():
                found.append(Chunk(start, n_rows, file.path, place))
                start += n_rows
        return found

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.raw(chunk):
            yield self.checked(chunk, batch)

    def raw(self, chunk: Chunk, room: Room | None = None) -> Iterator[Batch]:
        file, start = self._places[chunk.file]
        row = chunk.first_row
        if self.carry and self._differing:
            raise InputError(self._differing)
        with read_errors(file.path, file.kind):
            expect_unchanged(file)
            if room is not None and file.stored_bytes:
                pieces = file.read_stored(row - start, chunk.n_rows, room)
            else:
                pieces = file.read(row - start, chunk.n_rows, chunk.place, self.carry)
            for rows, carried in pieces:
                expect_unchanged(file)
                weights = None if self.weights is None else self.weights[row : row + len(rows)]
                yield Batch(row, rows, weights, carried, checksum=file.checksum(rows))
                row += len(rows)
            if row != chunk.first_row + chunk.n_rows:
                raise FormatError("ended too early: it has changed. Open it again.")

    def checked(self, chunk: Chunk, batch: Batch) -> Batch:
        batch = replace(batch, rows=linalg.native(batch.rows))
        if self.skip_bad_rows:
            return finite_only(batch)
        file, start = self._places[chunk.file]
        many = len(self.files) > 1  # then rows are counted in their file
        where = f" of {file.path!r}" if many else ""
        names = file.features if file.column is None else ()
        checks.finite(batch.rows, batch.first_row - start * many, where, names)
        return batch

    def split(self, chunk: Chunk, n_bytes: int) -> list[Chunk]:
        file, _ = self._places[chunk.file]
        if not file.stored_bytes:
            return [chunk]
        n_parts = -(-chunk.n_rows // max(1, n_bytes // file.stored_bytes))
        ends = [chunk.n_rows * i // n_parts for i in range(n_parts + 1)]
        return [
            replace(chunk, first_row=chunk.first_row + start, n_rows=end - start)
            for start, end in pairwise(ends)
        ]

    def origin(self) -> dict[str, Any]:
        texts = {file.origin for file in self.files}
        return parse_origin(texts.pop(), repr(self.paths[0])) if len(texts) == 1 else {}

    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.files[0].kind,
            "files": [stamped(file) for file in self.files],
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "column": [self.asked, self.column],
            "dtype": self.dtype,
            "chunk_rows": self.files[0].chunk_rows,
            "skip_bad_rows": self.skip_bad_rows,
            "weights": None if self.weights is None else zlib.crc32(self.weights.tobytes()),
        }

    def _differing_others(self) -> str:
        """The message for readers of the other columns if files differ in them; else empty."""
        first = dict(self.files[0].others)
        for file in self.files[1:]:
            here = dict(file.others)
            for name in [*first, *here] if here != first else ():
                if here.get(name) != first.get(name):
                    return (
                        f"{file.path!r} has {_column(name, here)}, but "
                        f"{self.files[0].path!r} has {_column(name, first)}. Files of one source "
                        "must have the same columns beside their vectors."
                    )
        return ""


def parse_origin(text: str, where: str) -> dict[str, Any]:
    """What a sink wrote under the name of the origin; empty if it wrote nothing."""
    if not text:
        return {}
    try:
        found = parse_json(text)
    except InputError as error:
        raise InputError(f"{where} has a damaged {ORIGIN}: {error}. Write it again.") from error
    if not isinstance(found, dict):
        raise InputError(f"{where} has {ORIGIN} that is no object. Write it again.")
    return found


def wide(dtype: str) -> bool:
    """Whether rows of this dtype are computed in float64; see linalg.native."""
    return dtype != "bfloat16" and linalg.native(np.empty(0, dtype)).dtype == np.float64


def stamped(file: File) -> list[Any]:
    """The path of a file, and what tells whether it is still the same."""
    with read_errors(file.path, file.kind):
        return [file.path, *file.now()[:2]]


def expect_unchanged(file: File) -> None:
    """Raise if the file was replaced or edited after it was opened."""
    if file.stamp and not paths.same(file.stamp, file.now()):
        raise FormatError("has changed since it was opened. Open it again.")


def _column(name: str, types: dict[str, str]) -> str:
    if not types.get(name):
        return f"{'' if name in types else 'no '}{brief(name)}"
    return f"{one_line(types[name], 60)} in {brief(name)}"


def listed(names: Sequence[Any], most: int = 20, word: Callable[[Any], str] = brief) -> str:
    """'a', 'b' and 3 others."""
    words: list[str] = []
    for name in names[:most]:
        words.append(word(name))
        if sum(map(len, words)) > LISTED:
            break
    rest = len(names) - len(words)
    return ", ".join(words) + (f" and {rest} others" if rest else "")


@contextmanager
def read_errors(path: str, kind: str) -> Iterator[None]:
    """Turn what decoding a damaged file raises into one line that names the file.

    Anything else is a bug of ours and keeps its traceback.
    """
    try:
        yield
    except FormatError as error:
        raise InputError(f"{path!r} {error}") from None
    except FileNotFoundError as error:
        others = (f"{path}.gz", path.removesuffix(".gz"))
        beside = [other for other in others if other != path and os.path.isfile(other)]
        advice = f"Did you mean {brief(beside[0])}?" if beside else "Check the path."
        raise InputError(f"there is no file {path!r}. {advice}") from error
    except _unreadable() as error:
        if isinstance(error, OSError) and error.strerror is not None:  # pyarrow's have none
            raise InputError(
                f"{brief(path)} cannot be read: {error.strerror}. Check the file."
            ) from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, MemoryError):  # pyarrow's
            raise InputError(
                f"{brief(path)} needs more memory than there is ({one_line(lines[0], 160)}). Free "
                "some; if the file is damaged, write or copy it again."
            ) from error
        raise InputError(
            f"{path!r} is damaged or not a {kind} file ({one_line(lines[0], 160)}). Write or "
            "copy it again."
        ) from error


def _unreadable() -> tuple[type[BaseException], ...]:
    """What the system raises, and what decoders raise on damaged files."""
    arrow = sys.modules.get("pyarrow")  # if it was never imported, it raised nothing
    damage = (EOFError, UnicodeDecodeError, json.JSONDecodeError, zipfile.BadZipFile, zlib.error)
    return (OSError, *damage) if arrow is None else (OSError, *damage, arrow.ArrowException)

"""numpy's .npz: .npy files in a zip archive, stored or compressed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError, Rows, listed
from isotropy.sources.npy import Header, expect_matrix, flat, read_header

LOCAL_HEADER = 30  # bytes before the name in a member's own header


@dataclass(frozen=True, kw_only=True)
class CompressedFile(File):
    """A compressed member: it can be read from its beginning only, so it is one piece."""

    kind: ClassVar[str] = ".npz"
    member: str

    def pieces(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(self.n_rows, ())]

    def read(
        self, first_row: int, n_rows: int, place: tuple[int, ...], carry: bool
    ) -> Iterator[tuple[Rows, None]]:
        with (
            paths.open_binary(self.path) as file,
            zipfile.ZipFile(file) as archive,
            archive.open(self.member) as member,
        ):
            _, _, dtype = read_header(member)
            width = self.n_features * dtype.itemsize
            for start in range(0, n_rows, self.rows_at_once):
                data = member.read(min(self.rows_at_once, n_rows - start) * width)
                yield np.frombuffer(data, dtype).reshape(-1, self.n_features), None


def open_npz(path: str, column: Column, chunk_rows: int | None) -> File:
    with paths.open_binary(path) as file, zipfile.ZipFile(file) as archive:
        headers, starts = {}, {}
        for entry in archive.infolist():
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as member:
                    name = entry.filename.removesuffix(".npy")
                    headers[name], starts[name] = read_header(member), member.tell()
        name = choose(headers, column)
        entry = archive.getinfo(f"{name}.npy")
        if entry.compress_type == zipfile.ZIP_STORED:
            file.seek(entry.header_offset + LOCAL_HEADER - 4)
            lengths = np.frombuffer(file.read(4), "<u2")  # of the name and the extra field
            offset = entry.header_offset + LOCAL_HEADER + int(lengths.sum()) + starts[name]
            return flat(path, headers[name], offset, chunk_rows, name)
    shape, fortran, dtype = headers[name]
    if fortran and shape[0] > 1 and shape[1] > 1:
        raise FormatError(f"holds {name!r} compressed and in Fortran order. Save it in C order.")
    return CompressedFile(
        path=path,
        n_rows=shape[0],
        n_features=shape[1],
        dtype=dtype.name,
        column=name,
        chunk_rows=chunk_rows,
        member=entry.filename,
    )


def choose(headers: dict[str, Header], column: Column) -> str:
    """The array that column names, by default the only matrix."""
    if column is not None:
        name = str(column)
        if name not in headers:
            raise FormatError(
                f"has no array {name!r}, only {listed(list(headers))}. Choose one with column."
            )
    else:
        matrices = [key for key, (shape, _, _) in headers.items() if len(shape) == 2]
        if len(matrices) != 1:
            raise FormatError(
                f"holds {len(matrices)} matrices among {listed(list(headers))}. Choose an array "
                "with column."
            )
        (name,) = matrices
    expect_matrix(headers[name], f"the array {name!r}")
    return name

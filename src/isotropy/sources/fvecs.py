"""TEXMEX .fvecs, .bvecs and .ivecs: each row is its width and its values."""

from __future__ import annotations

import numpy as np

from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError
from isotropy.sources.flat import FlatFile

STORED = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}


class FvecsFile(FlatFile):
    kind = ".fvecs"


def open_fvecs(path: str, column: Column, chunk_rows: int | None) -> File:
    stored = np.dtype(STORED[path[path.rindex(".") :].lower()])
    size, _ = paths.status(path)
    n_features = int.from_bytes(paths.read_bytes(path, 0, 4), "little")
    row = 4 + n_features * stored.itemsize
    if not n_features or size % row:
        raise FormatError(
            f"is truncated or not a .fvecs file: rows of {n_features} values do not fit its {size} "
            "bytes. Write or copy it again."
        )
    return FvecsFile(
        path=path,
        n_rows=size // row,
        n_features=n_features,
        dtype=stored.name,
        chunk_rows=chunk_rows,
        offset=0,
        stored=stored.str,
        prefix=True,
    )

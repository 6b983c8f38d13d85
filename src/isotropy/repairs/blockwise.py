"""Apply a function to rows in blocks, and give the result the type of the input."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import over_threads
from isotropy.errors import InputError
from isotropy.sources import PartsSink, Sink, Source, open_sink


def blockwise(
    function: Callable[[Array, Array], None],
    rows: Array,
    n_out: int,
    first_row: int | None = 0,
    in_float64: bool = False,
) -> Array:
    """The rows of width n_out that function(rows, out) writes, in the dtype of rows.

    Blocks of many rows are spread over threads. Values that don't fit the dtype are refused.
    """
    kind = str(rows.dtype).removeprefix("torch.")
    given = linalg.double(rows) if in_float64 else rows
    bounds = [start for start, _, _ in linalg.blocks(given)] + [given.shape[0]]
    out = linalg.empty((given.shape[0], n_out), given)

    def fill(i: int) -> None:
        part = slice(bounds[i], bounds[i + 1])
        with np.errstate(all="ignore"):  # checked below
            function(given[part], out[part])
        number = None if first_row is None else first_row + bounds[i]
        checks.fits(out[part], None, kind, number)

    over_threads(fill, range(len(bounds) - 1))
    if not in_float64:
        return out
    with np.errstate(over="ignore"):
        narrow = linalg.like(out, rows)
    checks.fits(narrow, out, kind, first_row)
    return narrow


def as_given(rows: Array, X: Any) -> Array:
    """rows as an array or tensor like X, in its dtype if that is floating."""
    if not checks.is_tensor(X):
        dtype = np.asarray(X).dtype
        if dtype.kind != "f" or dtype == rows.dtype:
            return rows
        with np.errstate(over="ignore"):
            cast = rows.astype(dtype)
    else:
        import torch

        rows = rows if checks.is_tensor(rows) else torch.from_numpy(rows)
        if not X.dtype.is_floating_point or X.dtype == rows.dtype:
            return rows
        cast = rows.to(X.dtype)
    checks.fits(cast, rows, str(cast.dtype).removeprefix("torch."))
    return cast


def open_target(out: Any, n_features: int, like: Source, **options: Any) -> Sink | PartsSink:
    """The sink for rows: a file, or, for a name without a suffix, a folder of Parquet parts."""
    if os.fspath(out) == "-":
        raise InputError(
            f"{options.get('name', 'out')} must be a file or a folder, got '-'. Name a file: rows "
            "cannot go to standard output."
        )
    kind = open_sink if os.path.splitext(out)[1] else PartsSink
    return kind(out, n_features, like=like, **options)

"""Frames with a column of vectors: pandas, polars, pyarrow, datasets, and all that speak Arrow."""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import InputError, one_line
from isotropy.sources.base import (
    Batch,
    Chunk,
    RowMap,
    Source,
    default_rows,
    even_chunks,
    finite_only,
    source_weights,
)
from isotropy.sources.columnar import (
    Layout,
    carried,
    choose,
    matrix,
    one_batch,
    origin_of,
    width,
)
from isotropy.sources.files import ORIGIN, Column, FormatError, parse_origin

HOW = "as in isotropy.open(X, column=...)"


class FrameSource(Source):
    """The vectors of a frame and its other columns, which are never copied as a whole.

    `table` is the frame in Arrow, and `layout` tells which of its columns are the vectors.
    """

    def __init__(
        self,
        frame: Any,
        table: pa.Table,
        layout: Layout,
        sample_weight: object = None,
        *,
        chunk_rows: int | None = None,
        skip_bad_rows: bool = False,
    ) -> None:
        self.frame, self.table, self.layout = frame, table, layout
        self.n_samples, self.n_features = table.num_rows, layout.n_features
        self.dtype, self.column = layout.dtype, layout.name
        self.paths = tuple(file["filename"] for file in getattr(frame, "cache_files", ()))
        self.weights = source_weights(sample_weight, self.n_samples)
        self.chunk_rows = chunk_rows
        self.skip_bad_rows = checks.flag(skip_bad_rows, "skip_bad_rows")

    def chunks(self) -> list[Chunk]:
        return even_chunks(self.n_samples, self.chunk_rows or default_rows(self.n_features))

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        part = slice(chunk.first_row, chunk.first_row + chunk.n_rows)
        batch = one_batch(self.table.slice(chunk.first_row, chunk.n_rows))
        weights = None if self.weights is None else self.weights[part]
        with frame_errors():
            yield read_batch(batch, self.layout, chunk.first_row, self.skip_bad_rows, weights)

    def bare(self) -> Self:
        other = copy.copy(self)
        other.frame, other.table = None, self._own()
        return other

    def _own(self) -> pa.Table:
        return self.table.select(self.layout.top_level(self.table.column_names))

    def origin(self) -> dict[str, Any]:
        return parse_origin(origin_of(self.table.schema), "X")

    def identity(self) -> dict[str, Any]:
        picked = np.linspace(0, self.n_samples - 1, min(self.n_samples, 1000)).astype(np.int64)
        rows = matrix(one_batch(self._own().take(picked)), self.layout, 0)
        return {
            "kind": "frame",
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "column": list(self.layout.names),
            "dtype": self.dtype,
            "checksum": zlib.crc32(np.ascontiguousarray(rows).tobytes()),
            "chunk_rows": self.chunk_rows,
            "skip_bad_rows": self.skip_bad_rows,
            "weights": None if self.weights is None else zlib.crc32(self.weights.tobytes()),
        }

    def mapped(self, rows: RowMap) -> Any:
        """A frame of the same kind with mapped vectors, without the bad rows that are left out."""
        checks.width(self.n_features, rows.n_features)
        parts, kept = list[NDArray[Any]](), list[NDArray[np.int64]]()
        for chunk in self.chunks():
            for batch in self.read(chunk):
                first, n_rows = batch.first_row, len(batch.rows)
                kept.append(
                    np.arange(first, first + n_rows) if batch.numbers is None else batch.numbers
                )
                if n_rows:
                    parts.append(returned(rows.function(batch), self.layout, first))
        if not parts:
            raise InputError("X must have good rows, got none.")
        new = parts[0] if len(parts) == 1 else np.concatenate(parts)
        left = None if len(new) == self.n_samples else np.concatenate(kept)
        return _like(self.frame, self.table, left, self.layout, new, rows.names)


def open_frame(
    X: Any,
    *,
    column: Column = None,
    chunk_rows: int | None = None,
    sample_weight: object = None,
    skip_bad_rows: bool = False,
) -> FrameSource | None:
    """The source of a frame of vectors; None if all its columns are numbers: it is an array."""
    pandas = column is None and checks.is_a(X, "pandas", "DataFrame")
    if pandas and all(getattr(kind, "kind", "O") in "biuf" for kind in X.dtypes):
        return None  # without a conversion
    table, index = _table(X)
    numbers = all(_is_number(field.type) for field in table.schema)
    if column is None and numbers and hasattr(X, "__array__"):
        return None
    with frame_errors():
        layout = chosen(table.drop_columns(index).schema, column)
        if layout.is_list:
            chunks = table.column(layout.names[0]).iterchunks()
            layout = replace(layout, n_features=width(chunks, layout))
    options: Any = {"chunk_rows": chunk_rows, "skip_bad_rows": skip_bad_rows}
    return FrameSource(X, table, layout, sample_weight, **options)


def chosen(schema: pa.Schema, column: Column) -> Layout:
    """The layout of the vectors, which must be in top-level columns."""
    layout = choose(schema, column)
    if not set(layout.names) <= set(schema.names):
        raise FormatError(
            f"has its vectors inside another column, in {layout.names[0]!r}. Make them a column of "
            "their own."
        )
    return layout


@contextmanager
def frame_errors() -> Iterator[None]:
    """Turn what is wrong with a frame into one line."""
    try:
        yield
    except FormatError as error:
        text = str(error)
        if text.endswith("with column."):
            text = f"{text[:-1]}, {HOW}."
        raise InputError(f"X {text}") from None


def read_batch(
    batch: pa.RecordBatch,
    layout: Layout,
    first_row: int,
    skip_bad_rows: bool,
    weights: NDArray[Any] | None = None,
) -> Batch:
    """The vectors of some rows beside their other columns, all finite."""
    rows = linalg.native(matrix(batch, layout, first_row))
    found = Batch(first_row, rows, weights, carried(batch, layout))
    if skip_bad_rows:
        return finite_only(found)
    checks.finite(rows, first_row, "", () if layout.is_list else layout.names)
    return found


def returned_dtype(layout: Layout) -> str:
    """The dtype of mapped vectors: that of the vectors if it is floating."""
    if np.dtype(layout.dtype).kind == "f":
        return layout.dtype
    return str(linalg.native(np.empty(0, layout.dtype)).dtype)


def returned(rows: NDArray[Any], layout: Layout, first_row: int) -> NDArray[Any]:
    """Mapped rows in the dtype of the vectors, which they must fit."""
    dtype = returned_dtype(layout)
    with np.errstate(over="ignore"):
        cast = rows.astype(dtype, copy=False)
    checks.fits(cast, rows, dtype, first_row)
    return cast


def with_vectors(
    table: pa.Table, layout: Layout, rows: NDArray[Any], names: Sequence[str]
) -> pa.Table:
    """The table with these rows in place of its vectors, in lists of the same kind.

    What is known of their origin is left out: the rows are no longer those that were made so.
    """
    metadata = {k: v for k, v in (table.schema.metadata or {}).items() if k != ORIGIN.encode()}
    table = table.replace_schema_metadata(metadata or None)
    new = _columns(table.schema, layout, rows, names)
    if new.column_names == list(layout.names):
        for name in new.column_names:
            i = table.schema.get_field_index(name)
            field = table.schema.field(i).with_type(new.schema.field(name).type)
            table = table.set_column(i, field, new.column(name))
        return table
    table = table.drop_columns(list(layout.names))
    for name in new.column_names:
        table = table.append_column(name, new.column(name))
    return table


def _columns(
    schema: pa.Schema, layout: Layout, rows: NDArray[Any], names: Sequence[str]
) -> pa.Table:
    """The rows as columns: one of lists, or one for each feature."""
    if not layout.is_list:
        names = layout.names if rows.shape[1] == len(layout.names) else names
        columns = [pa.array(np.ascontiguousarray(column)) for column in rows.T]
        return pa.table(columns, names=list(names))
    kind = schema.field(layout.names[0]).type
    values, n_features = pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1]
    starts = np.arange(0, len(values) + 1, n_features)
    if pa.types.is_large_list(kind):
        lists: Any = pa.LargeListArray.from_arrays(starts, values)
    elif pa.types.is_list(kind) and len(values) < 1 << 31:
        lists = pa.ListArray.from_arrays(starts.astype(np.int32), values)
    else:
        lists = pa.FixedSizeListArray.from_arrays(values, n_features)
    return pa.table({layout.names[0]: lists})


def _table(X: Any) -> tuple[pa.Table, list[str]]:
    """The frame in Arrow, and the names of the columns that are its index."""
    if checks.is_a(X, "datasets", "Dataset"):
        return X.with_format("arrow")[:], []
    if checks.is_a(X, "polars", "DataFrame"):  # its newest types can't be written to Parquet
        return X.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest()), []
    if not checks.is_a(X, "pandas", "DataFrame"):
        return pa.table(X), []
    try:
        table = pa.Table.from_pandas(X)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"X must have columns that Arrow can hold, got another ({one_line(error, 200)}). "
            "Convert that column, or leave it out."
        ) from error
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    return table, [name for name in index if isinstance(name, str)]


def _like(
    frame: Any,
    table: pa.Table,
    kept: NDArray[np.int64] | None,
    layout: Layout,
    rows: NDArray[Any],
    names: Sequence[str],
) -> Any:
    """A frame of the same kind with these rows as its vectors; `kept` are the rows that are left.

    What is not one of the kinds below comes back as a table of pyarrow.
    """
    new = _columns(table.schema, layout, rows, names)
    replaced = new.column_names == list(layout.names)
    if checks.is_a(frame, "pandas", "DataFrame"):
        return _pandas(frame if kept is None else frame.iloc[kept], new, layout, rows)
    if checks.is_a(frame, "polars", "DataFrame"):
        polars = sys.modules["polars"]
        left = frame if kept is None else frame[kept]
        left = left if replaced else left.drop(layout.names)
        return left.with_columns(polars.from_arrow(new).get_columns())
    table = with_vectors(table if kept is None else table.take(kept), layout, rows, names)
    if isinstance(frame, pa.RecordBatch):
        return one_batch(table)
    return _dataset(frame, table, new) if checks.is_a(frame, "datasets", "Dataset") else table


def _pandas(frame: Any, new: pa.Table, layout: Layout, rows: NDArray[Any]) -> Any:
    pandas = sys.modules["pandas"]
    labels = {str(label): label for label in frame.columns}
    own = [labels[name] for name in layout.names]
    frame = frame.copy(deep=False)
    if layout.is_list:
        values = pandas.Series(list(rows), index=frame.index, dtype=object)
        if isinstance(frame[own[0]].dtype, pandas.ArrowDtype):
            lists = pandas.arrays.ArrowExtensionArray(new.column(0))
            values = pandas.Series(lists, index=frame.index)
        frame[own[0]] = values
        return frame
    if rows.shape[1] == len(own):
        frame[own] = rows
        return frame
    beside = pandas.DataFrame(rows, index=frame.index, columns=new.column_names)
    return pandas.concat([frame.drop(columns=own), beside], axis=1)


def _dataset(frame: Any, table: pa.Table, new: pa.Table) -> Any:
    datasets = sys.modules["datasets"]
    features = frame.features.copy()
    features.update(datasets.Features.from_arrow_schema(new.schema))
    info = frame.info.copy()
    info.features = datasets.Features({name: features[name] for name in table.column_names})
    found = datasets.Dataset(table.replace_schema_metadata(None), info=info, split=frame.split)
    style = frame.format
    if style["type"] is None:
        return found
    return found.with_format(style["type"], **style["format_kwargs"])


def _is_number(kind: Any) -> bool:
    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )

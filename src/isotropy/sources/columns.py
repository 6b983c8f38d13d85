"""Which columns of a table are the vectors, and those as a matrix."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isotropy.errors import brief, one_line
from isotropy.sources.files import Column, FormatError, Rows, listed


@dataclass(frozen=True)
class Layout:
    """One column of lists (a dotted path where it is nested), or one column for each feature."""

    names: tuple[str, ...]
    is_list: bool
    dtype: str
    n_features: int = 0

    @property
    def name(self) -> str | None:
        """Name of the column of lists, without the path to it."""
        return self.names[0].rsplit(".", 1)[-1] if self.is_list else None

    def top_level(self, schema: pa.Schema) -> list[str]:
        """The table's own columns that hold the vectors."""
        there = set(schema.names)
        return [name if name in there else name.split(".")[0] for name in self.names]


def choose(schema: pa.Schema, column: Column, typed: bool = True) -> Layout:
    """The layout that column names; by default the only column of lists, else all of floats.

    Where types were guessed from text (`typed` is False), whole numbers beside floats may be
    labels or features, so that the choice is left to the user.
    """
    expect_different(schema.names)
    found = [item for field in schema for item in _lists(field.name, field.type)]
    expect_different([path for path, _ in found])
    lists = dict(found)
    numbers = {field.name: field.type for field in schema if _is_number(field.type)}
    if column is not None:
        return _named([column] if isinstance(column, str) else column, lists, numbers, schema)
    floats = [path for path, kind in lists.items() if pa.types.is_floating(kind)]
    vectors = floats or list(lists)
    if len(vectors) == 1:
        return Layout((vectors[0],), True, _dtype([lists[vectors[0]]]))
    if vectors:
        raise FormatError(f"has several columns of vectors: {listed(vectors)}. Choose with column.")
    names = [name for name, kind in numbers.items() if pa.types.is_floating(kind)]
    if names and not typed and len(names) < len(numbers):
        rest = [name for name in numbers if name not in names]
        raise FormatError(
            f"has whole numbers in {named(rest, schema.names)}. They may be labels or "
            "features: choose the features with column, by name or by pattern such as "
            f"{brief(names[0][:1] + '*')}."
        )
    names = names or list(numbers)
    if not names:
        raise FormatError(f"has no column of numbers or lists, only {listed(schema.names)}.")
    return Layout(tuple(names), False, _dtype([numbers[name] for name in names]), len(names))


def named(names: Sequence[str], there: Sequence[str]) -> str:
    """Some of the columns that are there; the first may have no name, as a data frame's index."""
    if names[0] or there[0]:
        return listed(names, 5)
    rest = f", and in {listed(names[1:], 5)}" if names[1:] else ""
    return f"its first column, which has no name{rest}"


def _named(
    wanted: Sequence[str], lists: dict[str, Any], numbers: dict[str, Any], schema: pa.Schema
) -> Layout:
    if len(wanted) == 1 and wanted[0] in lists:
        return Layout((wanted[0],), True, _dtype([lists[wanted[0]]]))
    names: list[str] = []
    for name in wanted:
        found = [name] if name in numbers else fnmatch.filter(numbers, name)
        if not found and name in schema.names:
            raise FormatError(
                f"has {one_line(str(schema.field(name).type), 60)} in column {brief(name)}, not "
                "numbers or lists of them. Choose another with column."
            )
        if not found:
            there = list(dict.fromkeys([*schema.names, *lists]))
            raise FormatError(
                f"has no column {brief(name)}, only {listed(there)}. Choose with column."
            )
        names += found
    expect_different(names, "is asked for the column")
    return Layout(tuple(names), False, _dtype([numbers[name] for name in names]), len(names))


def expect_different(names: Sequence[str], what: str = "has the column") -> None:
    """Raise where a name is there twice: nobody can tell which is meant."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(f"{what} {brief(name)} twice. Give each its own name.")
        seen.add(name)


def width(arrays: Iterator[pa.Array], layout: Layout) -> int:
    """Length of the first list that there is."""
    for array in arrays:
        lengths = pc.list_value_length(_descend(array, layout)).drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    raise FormatError(f"has nothing in column {brief(layout.names[0])}.")


def matrix(batch: pa.RecordBatch, layout: Layout, first_row: int) -> Rows:
    """The vectors of a batch whose first row is row first_row of its file."""
    if layout.is_list:
        top = layout.top_level(batch.schema)[0]
        return _lists_matrix(_descend(batch.column(top), layout), layout, first_row)
    dtype = np.dtype(layout.dtype)
    rows = np.empty((batch.num_rows, layout.n_features), dtype if dtype.kind == "f" else "f8")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for j, name in enumerate(layout.names):
        rows[:, j] = columns[name].to_numpy(zero_copy_only=False)
    return rows


def carried(batch: pa.RecordBatch, layout: Layout) -> pa.Table | None:
    """The other columns of a batch, if there are any."""
    own = set(layout.top_level(batch.schema))
    names = [name for name in batch.schema.names if name not in own]
    return pa.Table.from_batches([batch]).select(names) if names else None


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], table.schema)


def _lists_matrix(array: pa.Array, layout: Layout, first_row: int) -> Rows:
    lengths = pc.list_value_length(array)
    wrong = pc.not_equal(lengths, layout.n_features).to_numpy(zero_copy_only=False) == True  # noqa: E712
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FormatError(
            f"has {lengths[row]} features in row {first_row + row} of column "
            f"{brief(layout.names[0])}, but {layout.n_features} in the first. Vectors must have "
            "one width: drop the others."
        )
    values = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, layout.n_features)
    if not array.null_count:
        return np.asarray(values)
    dtype = values.dtype if values.dtype.kind == "f" else np.float64
    rows = np.full((len(array), layout.n_features), np.nan, dtype)
    rows[array.is_valid().to_numpy(zero_copy_only=False)] = values
    return rows


def _descend(array: pa.Array, layout: Layout) -> pa.Array:
    """The lists inside a top-level column, one for each row."""
    _, *parts = layout.names[0].split(".") if _is_nested(array.type) else [""]
    for part in parts:
        if not pa.types.is_struct(array.type):
            if not pc.all(pc.equal(pc.list_value_length(array), 1), min_count=0).as_py():
                raise FormatError(
                    f"has other than one vector a row in {brief(layout.names[0])}. Write one a "
                    "line."
                )
            array = array.flatten()
        array = pc.struct_field(array, part)
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _lists(path: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """(dotted path, type of the values) of every column of numbers lists at or below a column."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _lists(f"{path}.{field.name}", field.type)
    elif _is_list(kind) and _is_number(kind.value_type):
        yield path, kind.value_type
    elif _is_list(kind) and pa.types.is_struct(kind.value_type):
        yield from _lists(path, kind.value_type)


def _is_list(kind: Any) -> bool:
    test = pa.types
    return bool(test.is_list(kind) or test.is_large_list(kind) or test.is_fixed_size_list(kind))


def _is_nested(kind: Any) -> bool:
    return pa.types.is_struct(kind) or (_is_list(kind) and pa.types.is_struct(kind.value_type))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _dtype(kinds: list[Any]) -> str:
    return str(np.result_type(*(kind.to_pandas_dtype() for kind in kinds)).name)

"""Reading stored files without trusting them: strict JSON, safetensors, declared arrays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, brief, one_line

DTYPES = {  # safetensors' code: numpy's; bfloat16 as its bits
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
LARGEST_TEXT = 1 << 26  # bytes of JSON that are read
LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
LARGEST_SIZE = 1 << 62  # of a dimension
DEEPEST = 50  # nested objects and lists
TOO_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text in UTF-8; raises an InputError if it is not valid or nested deeply.

    Examples
    --------
    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    isotropy.errors.InputError: it names 'a' twice
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        found = json.loads(text, object_pairs_hook=_once)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("it is not text in UTF-8") from error
    except RecursionError as error:
        raise InputError(TOO_DEEP) from error
    except ValueError as error:
        raise InputError(f"it is not valid JSON: {one_line(error, 120)}") from error
    _expect_depth(found)
    return found


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file of at most 64 MB; see `parse_json`."""
    with open(path, "rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise InputError(f"it has more than {LARGEST_TEXT >> 20} MB")
    return parse_json(content)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(f"it names {one_line(repr(name), 60)} twice")
        found[name] = value
    return found


def _expect_depth(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        level = [
            part
            for outer in level
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return
    raise InputError(TOO_DEEP)


@dataclass(frozen=True)
class TensorEntry:
    """What the header of a safetensors file says about one array."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Safetensors:
    """An open safetensors file: its metadata and the entries of its arrays, which are not read yet.

    Raises `InputError` if the header is damaged: together, the arrays must take up all bytes after
    the header, and none of them twice.
    """

    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        self._file = file
        length = int.from_bytes(file.read(8), "little")
        if length > min(n_bytes - 8, LARGEST_HEADER):
            raise InputError(f"a header of {length} bytes does not fit its {n_bytes}")
        text = file.read(length)
        try:
            header = parse_json(text)
        except InputError as error:
            raise InputError(f"its header is damaged: {error}") from error
        if not isinstance(header, dict) or not text.startswith(b"{"):
            raise InputError("its header is not a JSON object")
        self.start = 8 + length
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        if not isinstance(self.metadata, dict) or not all(
            isinstance(value, str) for value in self.metadata.values()
        ):
            raise InputError("its __metadata__ is not made of texts")
        self.entries = {name: _entry(name, fields) for name, fields in header.items()}
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda it: (it[1].begin, it[1].end)):
            if entry.begin != end:
                raise InputError(
                    f"{brief(name)} begins at byte {entry.begin}, where those before it end at "
                    f"{end}"
                )
            end = entry.end
        n_found = n_bytes - self.start
        if n_found != end:
            truncated = "it is truncated: " if n_found < end else ""
            raise InputError(
                f"{truncated}it has {n_found} bytes of values, and its header promises {brief(end)}"
            )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays; together they are no larger than the file."""
        found = {}
        for name, entry in self.entries.items():
            if entry.dtype not in DTYPES or entry.dtype == "BF16":
                raise InputError(f"{one_line(name, 60)} is {one_line(entry.dtype.lower(), 20)}")
            self._file.seek(self.start + entry.begin)
            data = bytearray(self._file.read(entry.end - entry.begin))
            found[name] = np.frombuffer(data, DTYPES[entry.dtype]).reshape(entry.shape)
        return found


@contextlib.contextmanager
def open_safetensors(path: str | os.PathLike[str]) -> Iterator[Safetensors]:
    """The safetensors file at path; raises an InputError of a few words if it can't be read."""
    try:
        with open(path, "rb") as file:
            yield Safetensors(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(one_line(error, 200)) from error


def _entry(name: str, fields: Any) -> TensorEntry:
    fields = fields if isinstance(fields, dict) else {}
    dtype, shape, place = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(place) or len(place) != 2:
        raise InputError(
            f"its header has no dtype, shape and place for {brief(name)}, or not as whole numbers"
        )
    begin, end = place
    itemsize = np.dtype(DTYPES[dtype]).itemsize if dtype in DTYPES else 0
    if end < begin or (itemsize and end - begin != math.prod(shape) * itemsize):
        raise InputError(f"the size of {brief(name)} does not fit its shape")
    return TensorEntry(dtype, tuple(shape), begin, end)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < LARGEST_SIZE for x in value)


def checksum(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 over the header, and over names, dtypes, shapes and bytes in the order of names."""
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data, value)
    return value


KINDS = {
    "float": ("float64",),
    "single": ("float32",),
    "rows": ("float32", "float64"),
    "int": ("int64",),
    "seed": ("int64", "uint64"),
}
HALF_THE_DIGITS = float(np.finfo(np.float64).eps) ** 0.5


@dataclass(frozen=True)
class Field:
    """What one saved array must be.

    Parameters
    ----------
    shape : str
        Sizes separated by commas: numbers, or names such as "n_features", which have the same
        value in all fields. An empty shape is a single value.
    kind : {"float", "single", "rows", "int", "seed"}
        Float64, float32, either of them, int64, or any 64-bit integer.
    low, high : float
        Bounds of every value; with `above`, values must be above `low`, not equal to it.
    infinite : bool
        Whether values may be infinite. They are never NaN.
    optional : bool
        Whether the array may be left out.
    orthonormal : bool
        Whether the rows (of each part, if there are three axes) are orthonormal or zero.
    ascending : bool
        Whether no value is below the one before it.

    Examples
    --------
    >>> fields = {"mean_": Field("n_features"), "scale_": Field("n_features", low=0, above=True)}
    >>> check({"mean_": np.zeros(3), "scale_": np.ones(3)}, fields)
    {'n_features': 3}
    >>> check({"mean_": np.zeros(3), "scale_": np.ones(2)}, fields)
    Traceback (most recent call last):
    ...
    isotropy.errors.InputError: scale_ must have shape (3,), got (2,)
    """

    shape: str = ""
    kind: Literal["float", "single", "rows", "int", "seed"] = "float"
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    infinite: bool = False
    optional: bool = False
    orthonormal: bool = False
    ascending: bool = False

    @property
    def axes(self) -> list[str]:
        """The names of the sizes."""
        return [size.strip() for size in self.shape.split(",")] if self.shape else []

    def check_shape(self, name: str, array: NDArray[Any], sizes: dict[str, int]) -> None:
        """Raise unless dtype and shape are right; sizes named for the first time are added."""
        if str(array.dtype) not in KINDS[self.kind]:
            wanted = " or ".join(KINDS[self.kind])
            raise InputError(f"{name} must be {wanted}, got {one_line(array.dtype, 20)}")
        if array.ndim == len(self.axes):
            for size, n_found in zip(self.axes, array.shape, strict=True):
                if not size.isdigit():
                    sizes.setdefault(size, n_found)
        expected = [size if size.isdigit() else str(sizes.get(size, size)) for size in self.axes]
        if [str(size) for size in array.shape] != expected:
            said = one_line(f"({', '.join(expected)}{',' * (len(expected) == 1)})", 60)
            raise InputError(f"{name} must have shape {said}, got {one_line(array.shape, 60)}")

    def check_values(self, name: str, array: NDArray[Any]) -> None:
        """Raise unless every value is within its bounds and rules."""
        if array.dtype.kind == "f":
            bad = np.isnan(array) if self.infinite else ~np.isfinite(array)
            if bad.any():
                rule = "numbers" if self.infinite else "finite"
                raise InputError(f"{name} must be {rule}, got {array[bad].flat[0]}")
        if not array.size:
            return
        least, most = array.min(), array.max()
        if least < self.low or (self.above and least <= self.low):
            rule = "above" if self.above else "at least"
            raise InputError(f"{name} must be {rule} {self.low:g}, got {least}")
        if most > self.high:
            raise InputError(f"{name} must be at most {self.high:g}, got {most}")
        if self.orthonormal and not _orthonormal(array):
            raise InputError(f"{name} must have orthonormal rows, but does not")
        if self.ascending and not (array[1:] >= array[:-1]).all():
            raise InputError(f"{name} must be ascending, but is not")


def check(
    arrays: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    sizes: Mapping[str, int] = {},
) -> dict[str, int]:
    """The sizes by name; raises an InputError of a few words unless arrays are as declared."""
    known = dict(sizes)
    unknown = sorted(arrays.keys() - fields.keys())
    missing = [name for name, field in fields.items() if not field.optional and name not in arrays]
    for names, what in ((unknown, "not expected"), (missing, "missing")):
        if names:
            listed = one_line(", ".join(names), 120)
            raise InputError(f"{listed} {'is' if len(names) == 1 else 'are'} {what}")
    for name, field in fields.items():
        if name in arrays:
            field.check_shape(name, arrays[name], known)
    for name, array in arrays.items():
        fields[name].check_values(name, array)
    return known


def _orthonormal(array: NDArray[Any]) -> bool:
    """Whether the rows are orthonormal or zero, to half the digits.

    Tested with two random mixtures of rows, for which C C' v = v must hold.
    """
    n_rows = array.shape[-2]
    lengths = np.einsum("...ij,...ij->...i", array, array)
    one = lengths > 0.5
    if (np.abs(lengths - one) > HALF_THE_DIGITS).any():
        return False
    mixtures = np.random.default_rng(0).standard_normal((n_rows, 2)) * one[..., None]
    back = array @ (np.swapaxes(array, -1, -2) @ mixtures)
    return bool((np.abs(back - mixtures) <= HALF_THE_DIGITS * max(n_rows, 1)).all())

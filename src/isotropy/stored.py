"""Reading stored files without trusting them: strict JSON, safetensors, declared arrays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from isotropy.errors import InputError, one_line

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
LARGEST_TEXT = 1 << 26  # bytes of JSON that are read
DEEPEST = 50  # objects and lists within each other
TOO_DEEP = "it is nested too deeply"


def parsed(text: str) -> Any:
    """The value of a JSON text in which no object names a key twice.

    Raises
    ------
    InputError
        Where it is not valid JSON, or nested too deeply to be read.

    Examples
    --------
    >>> parsed('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parsed('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    isotropy.errors.InputError: it names 'a' twice
    """
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except InputError:
        raise
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except ValueError as error:
        raise InputError(f"it is not valid JSON: {one_line(error, 120)}") from error
    _expect_depth(found)
    return found


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file in UTF-8, of at most 64 MB; as `parsed`."""
    with open(path, "rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise InputError(f"it has more than {LARGEST_TEXT >> 20} MB")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("it is not text in UTF-8") from error
    return parsed(text)


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


class Stored:
    """An open safetensors file: its metadata and the outlines of its arrays are known, no more."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.metadata: dict[str, str] = file.metadata() or {}
        self.outlines = {name: _outline(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays; together they are no larger than the file."""
        for name, outline in self.outlines.items():
            if outline.dtype not in DTYPES.values():
                raise InputError(f"{one_line(name, 60)} is {one_line(outline.dtype, 20)}")
        return {name: self._file.get_tensor(name) for name in self.outlines}


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Stored]:
    """The safetensors file at path, or an InputError in a few words."""
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            yield Stored(file)
    except (SafetensorError, OSError) as error:
        raise InputError(one_line(error, 200)) from error


def _outline(part: Any) -> Outline:
    dtype = part.get_dtype()
    return Outline(DTYPES.get(dtype, str(dtype).lower()), tuple(part.get_shape()))


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
class Outline:
    """Dtype and shape of an array, which a file tells before it is read."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """What one saved array must be.

    Parameters
    ----------
    shape : str
        Sizes with commas between: names, such as "n_features", which all fields that name one
        share, or numbers. None at all is a single value.
    kind : {"float", "single", "rows", "int", "seed"}
        Float64, float32, either of them, int64, or any 64-bit integer.
    low, high : float
        Bounds of every value. Every value is finite, unless `infinite`, and never NaN.
    above : bool
        Values must be above `low`, not equal to it.
    infinite : bool
        Whether values may be infinite.
    optional : bool
        Whether the array may be left out.
    orthonormal : bool
        Whether the rows (of each part, where there are three axes) are orthonormal, or zero.
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
        """The sizes of the shape, as they are named."""
        return [size.strip() for size in self.shape.split(",")] if self.shape else []

    def check_outline(self, name: str, outline: Outline, sizes: dict[str, int]) -> None:
        """Raise unless dtype and shape are right; sizes that are named first here are noted."""
        if outline.dtype not in KINDS[self.kind]:
            wanted = " or ".join(KINDS[self.kind])
            raise InputError(f"{name} must be {wanted}, got {one_line(outline.dtype, 20)}")
        if len(outline.shape) == len(self.axes):
            for size, n_found in zip(self.axes, outline.shape, strict=True):
                if not size.isdigit():
                    sizes.setdefault(size, n_found)
        expected = [size if size.isdigit() else str(sizes.get(size, size)) for size in self.axes]
        if [str(size) for size in outline.shape] != expected:
            said = one_line(f"({', '.join(expected)}{',' * (len(expected) == 1)})", 60)
            raise InputError(f"{name} must have shape {said}, got {one_line(outline.shape, 60)}")

    def check_values(self, name: str, array: NDArray[Any]) -> None:
        """Raise unless every value is what it must be."""
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


def outlines(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Outline]:
    """Dtypes and shapes of arrays."""
    return {name: Outline(str(array.dtype), array.shape) for name, array in arrays.items()}


def check_outlines(
    found: Mapping[str, Outline], fields: Mapping[str, Field], sizes: Mapping[str, int] = {}
) -> dict[str, int]:
    """The sizes by name, or one line on what is missing, not known, or of another shape."""
    known = dict(sizes)
    unknown = found.keys() - fields.keys()
    if unknown:
        raise InputError(f"{_listed(sorted(unknown))} {_is(unknown)} not expected")
    missing = [name for name, field in fields.items() if not field.optional and name not in found]
    if missing:
        raise InputError(f"{_listed(missing)} {_is(missing)} missing")
    for name, field in fields.items():
        if name in found:
            field.check_outline(name, found[name], known)
    return known


def _is(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def check(
    arrays: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    sizes: Mapping[str, int] = {},
) -> dict[str, int]:
    """The sizes by name of arrays that are what the fields say, or one line on what is not."""
    found = check_outlines(outlines(arrays), fields, sizes)
    for name, array in arrays.items():
        fields[name].check_values(name, array)
    return found


def _orthonormal(array: NDArray[Any]) -> bool:
    """Whether the rows are orthonormal or zero, to half the digits; seen by two mixtures of them.

    C C' v = v for every v that is zero where a row of C is: at two products, not one for each row.
    """
    n_rows = array.shape[-2]
    lengths = np.einsum("...ij,...ij->...i", array, array)
    one = lengths > 0.5
    if (np.abs(lengths - one) > HALF_THE_DIGITS).any():
        return False
    mixtures = np.random.default_rng(0).standard_normal((n_rows, 2)) * one[..., None]
    back = array @ (np.swapaxes(array, -1, -2) @ mixtures)
    return bool((np.abs(back - mixtures) <= HALF_THE_DIGITS * max(n_rows, 1)).all())


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(names), 120)

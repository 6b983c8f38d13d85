"""Files that were stored before, read without trust: strict JSON, and safetensors with a header."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from isotropy.errors import InputError, one_line
from isotropy.fields import Outline

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
        raise InputError(f"it is not valid JSON: {one_line(error, 120)}") from None
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
    except UnicodeDecodeError:
        raise InputError("it is not text in UTF-8") from None
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
        raise InputError(one_line(error, 200)) from None


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

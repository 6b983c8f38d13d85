"""A checksum of settings and of what was learned, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def digest(value: Any) -> str:
    """A checksum of plain values, arrays, and fitted estimators by parameters and learned values.

    A fitted repair and the one loaded from its file have the same; of anything else, such as a
    function, only the same thing in the same process has.

    Examples
    --------
    >>> digest({"a": 1, "b": np.zeros(2)}) == digest({"b": np.zeros(2), "a": np.int64(1)})
    True
    """
    found = hashlib.sha256()
    for part in _parts(value):
        found.update(f"{len(part)} ".encode() + part)
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        yield f"mapping of {len(value)}".encode()
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, (list, tuple)):
        yield f"list of {len(value)}".encode()
        for part in value:
            yield from _parts(part)
    elif hasattr(value, "get_params"):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        yield from _parts(value.get_params(deep=False))
        yield from _parts(_learned(value))
    else:
        yield from _plain_parts(value)


def _learned(estimator: Any) -> dict[str, Any]:
    """What it learned: as a repair names it, or in attributes that end in an underscore."""
    names = getattr(estimator, "learned", None) or [n for n in vars(estimator) if n.endswith("_")]
    return {name: getattr(estimator, name) for name in names}


def _plain_parts(value: Any) -> Iterator[bytes]:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.ndim == 0 or array.dtype.hasobject:
        yield repr(array.item() if array.ndim == 0 else value).encode()
    else:
        yield f"{array.dtype.str} {array.shape}".encode()
        yield array.tobytes()

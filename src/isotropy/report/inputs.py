"""Files of JSON that the page shows: what commands printed, checked before anything is drawn."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from isotropy import stored
from isotropy.errors import InputError, one_line, reason

MOST = 10_000  # entries of a list
LONGEST = 10_000  # characters of a text
LARGEST = sys.float_info.max
Check = Callable[[Any, str], None]


def read(found: Any, argument: str, printed: str) -> Mapping[str, Any]:
    """The object in a file, or the one given."""
    name = argument
    if isinstance(found, (str, os.PathLike)):
        name = f"{argument} {one_line(repr(os.fspath(found)), 160)}"
        try:
            found = stored.read_json(found)
        except OSError as error:
            raise InputError(f"report: {name} must be readable ({reason(error)}).") from None
        except InputError as error:
            raise InputError(f"report: {name} must be what {printed} printed: {error}.") from None
    if not isinstance(found, Mapping):
        raise InputError(
            f"report: {name} must be what {printed} printed, got {type(found).__name__}."
        )
    return found


def text(value: Any, name: str) -> None:
    """Raise unless value is text."""
    if not isinstance(value, str) or len(value) > LONGEST:
        raise _wrong(name, "text", value)


def number(value: Any, name: str) -> None:
    """Raise unless value is a finite number, or null or NaN where it is undefined."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "a number or null", value)
    if value != value:  # undefined, as results of Python say it
        return
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer that no float reaches
        finite = False
    if not finite:
        raise _wrong(name, "a finite number or null", value)


def defined(value: Any, name: str) -> None:
    """Raise unless value is a finite number."""
    number(value, name)
    if value is None or value != value:
        raise _wrong(name, "a number", value)


def count(value: Any, name: str) -> None:
    """Raise unless value is an integer of at least zero."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _wrong(name, "an integer of at least 0", value)


def interval(value: Any, name: str) -> None:
    """Raise unless value is a pair of numbers."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise _wrong(name, "a pair of numbers", value)
    for end in value:
        number(end, name)


def optional(check: Check) -> Check:
    """What passes null too."""
    return lambda value, name: None if value is None else check(value, name)


def params(value: Any, name: str) -> None:
    """Raise unless value is an object of plain values."""
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise _wrong(name, "an object", value)
    for key, part in value.items():
        if part is not None and not isinstance(part, (bool, str, int, float)):
            raise _wrong(f"{name} {one_line(key, 40)}", "a plain value", part)
        if isinstance(part, str):
            text(part, f"{name} {one_line(key, 40)}")
        elif isinstance(part, int) and abs(part) > LARGEST:
            raise _wrong(f"{name} {one_line(key, 40)}", "a number that a float can hold", part)


def objects(fields: Mapping[str, Check], least: int = 0) -> Check:
    """A list of objects with these fields."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= MOST:
            raise _wrong(name, f"a list of {least} to {MOST:,} objects", value)
        for i, part in enumerate(value):
            each(part, fields, f"{name}[{i}]")

    return check


def texts(value: Any, name: str) -> None:
    """Raise unless value is a list of texts."""
    if not isinstance(value, (list, tuple)) or len(value) > MOST:
        raise _wrong(name, "a list of texts", value)
    for part in value:
        text(part, name)


def nested(fields: Mapping[str, Check]) -> Check:
    """An object with these fields."""
    return lambda value, name: each(value, fields, name)


def each(value: Any, fields: Mapping[str, Check], name: str = "") -> None:
    """Raise unless value is an object whose fields are as they must be; it may have others."""
    if not isinstance(value, Mapping):
        raise _wrong(name or "it", "an object", value)
    for key, check in fields.items():
        where = f"{name}.{key}" if name else key
        if key not in value:
            raise InputError(f"{where} is missing")
        check(value[key], where)


def _wrong(name: str, rule: str, value: Any) -> InputError:
    if isinstance(value, int) and abs(value) > LARGEST:  # which Python may refuse to print
        got = f"an integer of {value.bit_length():,} bits"
    else:
        got = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return InputError(f"{name} must be {rule}, got {one_line(got, 60)}")

"""Evidence as the report shows it, from results or from the JSON that commands printed."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isotropy import stored
from isotropy.errors import InputError, one_line, reason

MOST = 10_000  # entries of a list
LONGEST = 10_000  # characters of a text
LARGEST = sys.float_info.max
Check = Callable[[Any, str], None]


def read(
    found: Any,
    argument: str,
    printed: str,
    fields: Callable[[Mapping[str, Any]], Mapping[str, Check]],
) -> Mapping[str, Any]:
    """The object in a file, or the one given, which must have the fields that belong to it."""
    name = argument
    if isinstance(found, (str, os.PathLike)):
        name = f"{argument} {one_line(repr(os.fspath(found)), 160)}"
        try:
            found = stored.read_json(found)
        except OSError as error:
            raise InputError(f"{name} must be readable ({reason(error)}).") from error
        except InputError as error:
            raise InputError(f"{name} must be the output of {printed}: {error}.") from None
    if not isinstance(found, Mapping):
        raise InputError(f"{name} must be the output of {printed}, got {type(found).__name__}.")
    try:
        each(found, fields(found))
    except InputError as error:
        raise InputError(f"{argument} must be the output of {printed}: {error}.") from None
    return found


def text(value: Any, name: str) -> None:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise _wrong(name, "text", value)


def count(value: Any, name: str) -> None:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _wrong(name, "an integer of at least 0", value)


def positive(value: Any, name: str) -> None:
    count(value, name)
    if not value:
        raise _wrong(name, "an integer of at least 1", value)


def number(value: Any, name: str) -> None:
    """Raise unless value is a finite number, or null or NaN if it is undefined."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "a number or null", value)
    if abs(value) > LARGEST:
        raise _wrong(name, "a finite number or null", value)


def defined(value: Any, name: str) -> None:
    number(value, name)
    if value is None or value != value:
        raise _wrong(name, "a number", value)


def flag(value: Any, name: str) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)


def optional(check: Check) -> Check:
    """The check, which null passes too."""
    return lambda value, name: None if value is None else check(value, name)


def params(value: Any, name: str) -> None:
    """Raise unless value is an object of plain values."""
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise _wrong(name, "an object", value)
    for key, part in value.items():
        where = f"{name} {one_line(key, 40)}"
        if part is not None and not isinstance(part, (bool, str, int, float)):
            raise _wrong(where, "a plain value", part)
        if isinstance(part, str):
            text(part, where)
        elif isinstance(part, int) and abs(part) > LARGEST:
            raise _wrong(where, "a number that a float can hold", part)


def listing(check: Check, words: str, least: int = 0, most: int = MOST) -> Check:
    """A list of so many parts that pass a check, in words."""

    def check_all(value: Any, name: str) -> None:
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= most:
            raise _wrong(name, words, value)
        for i, part in enumerate(value):
            check(part, f"{name}[{i}]")

    return check_all


def objects(fields: Mapping[str, Check], least: int = 0) -> Check:
    """A list of objects with these fields."""
    words = f"a list of {least} to {MOST:,} objects"
    return listing(lambda value, name: each(value, fields, name), words, least)


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


NORMAL = 1.96  # standard errors on either side of a 95 % interval
PRINTED = "`isotropy compare --json`, `isotropy advise --json` or `isotropy compress --json`"
INTERVAL = listing(number, "a pair of numbers", 2, 2)
RESULT = {
    **dict.fromkeys(("task", "metric", "repair", "method", "fitted_on"), text),
    **dict.fromkeys(("score", "difference", "p_holm"), number),
    "interval": INTERVAL,
}
COMPARED = {"results": objects(RESULT, least=1), "notes": listing(text, "a list of texts")}
CANDIDATE = {
    "method": text,
    "params": params,
    **dict.fromkeys(("score", "difference", "standard_error"), number),
}
DIAGNOSED = {"reason": text}
ADVISED = {
    **dict.fromkeys(("reason", "task", "metric", "choice"), text),
    "params": params,
    "baseline": defined,
    "score": defined,
    "interval": INTERVAL,
    "p": number,
    "candidates": objects(CANDIDATE),
}
CODE = {
    **dict.fromkeys(("name", "repair", "code"), text),
    **dict.fromkeys(("n_bytes", "n_bytes_stored"), positive),
    **dict.fromkeys(("ratio", "score", "loss"), number),
    "interval": INTERVAL,
    **dict.fromkeys(("on_frontier", "chosen"), flag),
}
COMPRESSED = {
    **dict.fromkeys(("reason", "task", "metric", "fitted_on", "items"), text),
    "baseline": defined,
    "n_bytes": positive,
    "n_tested": count,
    "codes": objects(CODE, least=1),
    "notes": listing(text, "a list of texts"),
}


@dataclass(frozen=True)
class Gain:
    """The gain of a repair over no repair on a task; scores and differences are times 100."""

    task: str
    metric: str
    repair: str
    score: float
    difference: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Evidence:
    """The gains of one comparison or advice, and its text."""

    title: str
    conclusion: str
    words: str
    gains: tuple[Gain, ...]
    baselines: dict[str, float]
    p_kind: str


@dataclass(frozen=True)
class Point:
    """A code of vectors: its size, and its score with a 95 % interval, both times 100."""

    name: str
    repair: str
    code: str
    n_bytes: int
    n_bytes_stored: int
    ratio: float
    score: float
    loss: float
    interval: tuple[float, float]
    on_frontier: bool
    chosen: bool


@dataclass(frozen=True)
class Codes:
    """The codes that `compress` compared, and its verdict."""

    task: str
    metric: str
    conclusion: str
    words: str
    baseline: float
    n_bytes: int
    points: tuple[Point, ...]
    gains: tuple[Gain, ...] = ()


def opened(found: Any) -> Evidence | Codes:
    """The evidence of a comparison, an advice, a compression, their plain values, or a file."""
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    found = read(found, "evidence", PRINTED, _fields)
    if "codes" in found:
        return _compressed(found)
    return _compared(found) if "results" in found else _advised(found)


def opened_codes(found: Any) -> Codes:
    """The codes of a compression, its plain values, or a file of JSON."""
    if isinstance(found, Codes):
        return found
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    printed = "`isotropy compress --json`"
    return _compressed(read(found, "compression", printed, lambda _: COMPRESSED))


def _compressed(found: Mapping[str, Any]) -> Codes:
    points = []
    for row in found["codes"]:
        low, high = (_number(end) for end in row["interval"])
        values = {name: _number(row[name]) for name in ("ratio", "score", "loss")}
        ends = {"interval": (low, high)}
        points.append(Point(**{name: row[name] for name in CODE} | values | ends))
    fitted = f"Codes were fitted on {found['fitted_on']}."
    words = " ".join([f"{found['n_tested']:,} items were tested.", fitted, *found["notes"]])
    return Codes(
        found["task"], found["metric"], found["reason"], words, float(found["baseline"]),
        found["n_bytes"], tuple(points),
    )  # fmt: skip


def _fields(found: Mapping[str, Any]) -> Mapping[str, Check]:
    if "results" in found:
        return COMPARED
    if "codes" in found:
        return COMPRESSED
    return DIAGNOSED if found.get("baseline", 0) is None else ADVISED


def _compared(found: Mapping[str, Any]) -> Evidence:
    results = found["results"]
    words = [f"Repairs were fitted on {results[0]['fitted_on']}.", *found["notes"]]
    return Evidence(
        "Results of `compare`",
        "",
        " ".join(words),
        tuple(_gain(result, result["p_holm"]) for result in results if result["method"] != "none"),
        {r["task"]: _number(r["score"]) for r in results if r["method"] == "none"},
        "p, Holm",
    )


def _advised(found: Mapping[str, Any]) -> Evidence:
    reason, task, baseline = str(found["reason"]), str(found.get("task", "")), found["baseline"]
    if baseline is None:  # a diagnosis without labels
        return Evidence("Results of `advise` without labels", "", reason, (), {}, "p")
    gains = []
    conclusion = "Leave it alone."
    if found["choice"] != "none":
        chosen = {"task": f"{task}, advised", "difference": found["score"] - baseline}
        gains.append(dict(found) | _named(found) | chosen)
        conclusion = f"Repair it: {_named(found)['repair']}."
    for row in found["candidates"]:
        if row["method"] != "none" and row["difference"] is not None:
            middle, reach = row["difference"], NORMAL * (row["standard_error"] or 0.0)
            ends = (middle - reach, middle + reach)
            inside = {"task": f"{task}, while choosing", "metric": found["metric"], "p": None}
            gains.append(dict(row) | _named(row) | inside | {"interval": ends})
    parts = tuple(_gain(gain, gain["p"]) for gain in gains)
    title = "Results of `advise`, on held-out folds"
    baselines = {f"{task}, advised": float(baseline)}
    return Evidence(title, conclusion, reason, parts, baselines, "one-sided p")


def _named(row: Mapping[str, Any]) -> dict[str, str]:
    name = row.get("choice", row.get("method"))
    params = ", ".join(f"{key}={value}" for key, value in row["params"].items())
    level = " on tokens" if row.get("level") == "token" else ""
    return {"repair": (f"{name}({params})" if params else f"{name}") + level}


def _gain(row: Mapping[str, Any], p: float) -> Gain:
    low, high = (math.nan if end is None else float(end) for end in row["interval"])
    return Gain(
        str(row["task"]), str(row["metric"]), str(row["repair"]), _number(row["score"]),
        _number(row["difference"]), (low, high), _number(p),
    )  # fmt: skip


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)

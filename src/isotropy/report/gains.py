"""Evidence as the report shows it, from results or from the JSON that the commands print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.errors import InputError
from isotropy.evidence import Advice, Comparison
from isotropy.report import inputs

NORMAL = 1.96  # standard errors on either side of a 95 % interval
PRINTED = "`isotropy compare --json` or `isotropy advise --json`"
RESULT = {
    "task": inputs.text,
    "metric": inputs.text,
    "repair": inputs.text,
    "method": inputs.text,
    "score": inputs.number,
    "difference": inputs.number,
    "interval": inputs.interval,
    "p_holm": inputs.number,
    "fitted_on": inputs.text,
}
COMPARED = {"results": inputs.objects(RESULT, least=1), "notes": inputs.texts}
CANDIDATE = {
    "method": inputs.text,
    "params": inputs.params,
    "score": inputs.number,
    "difference": inputs.number,
    "standard_error": inputs.number,
}
DIAGNOSED = {"reason": inputs.text}
ADVISED = {
    "reason": inputs.text,
    "task": inputs.text,
    "metric": inputs.text,
    "choice": inputs.text,
    "params": inputs.params,
    "baseline": inputs.defined,
    "score": inputs.defined,
    "interval": inputs.interval,
    "p": inputs.number,
    "candidates": inputs.objects(CANDIDATE),
}


@dataclass(frozen=True)
class Gain:
    """What a repair gains over none on a task; scores and differences are times 100."""

    task: str
    metric: str
    repair: str
    score: float
    difference: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Evidence:
    """Gains of one comparison or advice, with what it says in words."""

    title: str
    conclusion: str
    words: str
    gains: tuple[Gain, ...]
    baselines: dict[str, float]
    p_kind: str


def opened(found: Any) -> Evidence:
    """The evidence of a comparison, an advice, their plain values, or a file of JSON."""
    if isinstance(found, (Comparison, Advice)):
        found = found.to_dict()
    found = inputs.read(found, "evidence", PRINTED)
    try:
        if "results" in found:
            inputs.each(found, COMPARED)
            return _compared(found)
        inputs.each(found, DIAGNOSED if found.get("baseline", 0) is None else ADVISED)
        return _advised(found)
    except InputError as error:
        raise InputError(f"report: evidence must be what {PRINTED} printed: {error}.") from None


def _compared(found: Mapping[str, Any]) -> Evidence:
    results = found["results"]
    first = results[0]
    words = [f"Repairs were fitted on {first['fitted_on']}.", *found["notes"]]
    return Evidence(
        "What `compare` found",
        "",
        " ".join(words),
        tuple(_gain(result, result["p_holm"]) for result in results if result["method"] != "none"),
        {r["task"]: _number(r["score"]) for r in results if r["method"] == "none"},
        "p, Holm",
    )


def _advised(found: Mapping[str, Any]) -> Evidence:
    reason, task, baseline = str(found["reason"]), str(found.get("task", "")), found["baseline"]
    if baseline is None:  # a diagnosis without labels
        return Evidence("What `advise` found without labels", "", reason, (), {}, "p")
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
    title = "What `advise` found, on held-out folds"
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


def all_gains(parts: Iterable[Evidence]) -> list[Gain]:
    """The gains of all parts, one after the other."""
    return [gain for part in parts for gain in part.gains]

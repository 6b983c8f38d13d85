"""Runs over seeds: mean, standard deviation, median, and a test of each method against none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from isotropy.evidence import holm
from isotropy.tables import text_table

NONE = "none"
RunRecord = dict[str, Any]
HEAD: tuple[str, ...] = ("model", "task", "method", "metric", "mean", "sd", "median", "change")
HEAD += ("p", "Holm", "s/epoch", "remarks")


@dataclass(frozen=True)
class MeanDifference:
    """Tests of whether two means differ, two-sided; NaN if either has too few scores."""

    difference: float = math.nan
    low: float = math.nan  # ends of the 95 % interval of the difference, by Welch
    high: float = math.nan
    p: float = math.nan  # of Welch's t-test
    p_student: float = math.nan  # of the two-sample t-test, which assumes equal variances


@dataclass(frozen=True)
class Row:
    """A method on a task with a model, over seeds; scores are fractions."""

    model: str
    task: str
    method: str  # as given
    spec: str  # with the options that a search chose
    metric: str
    scores: tuple[float, ...]  # one per seed, NaN if it is undefined or the run diverged
    n_diverged: int
    n_one_class: int  # runs that predicted one class for all items
    mean: float  # of the scores that are defined
    sd: float
    median: float
    difference: float  # from the mean of none; NaN for none itself
    low: float  # ends of its 95 % interval, by Welch
    high: float
    p: float  # of Welch's t-test against none, two-sided; NaN without variance
    p_student: float  # of the two-sample t-test with equal variances, as in Ding et al. 2022
    p_holm: float  # adjusted for the methods tested on this task with this model
    seconds_per_epoch: float
    peak_memory_mb: float
    records: tuple[RunRecord, ...]


def summary(records: Iterable[RunRecord]) -> list[Row]:
    """A row for each model, task and method, in the order of the records, without searches.

    Examples
    --------
    >>> base = {"model": "m", "task": "rte", "metric": "accuracy", "status": "finished"}
    >>> base |= {"metrics": {}, "seconds_per_epoch": 1.0, "peak_memory_mb": 9.0}
    >>> runs = [base | {"method": "none", "score": s} for s in (0.5, 0.6)]
    >>> runs += [base | {"method": "cosine", "score": s} for s in (0.7, 0.8)]
    >>> none, cosine = summary(runs)
    >>> round(cosine.difference, 2), round(cosine.p, 3)
    (0.2, 0.106)
    """
    cells: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for record in records:
        if not record.get("search"):
            methods = cells.setdefault((record["model"], record["task"]), {})
            methods.setdefault(record["method"], []).append(record)
    return [row for methods in cells.values() for row in _rows(methods)]


def _rows(methods: dict[str, list[RunRecord]]) -> list[Row]:
    """The rows of one task with one model."""
    baseline = _defined(methods.get(NONE, []))
    tests = {
        name: mean_difference(_defined(records), baseline)
        for name, records in methods.items()
        if name != NONE
    }
    names = [name for name, test in tests.items() if not math.isnan(test.p)]
    adjusted = dict(zip(names, holm([tests[name].p for name in names]), strict=True))
    return [
        _row(records, tests.get(name, MeanDifference()), adjusted.get(name, math.nan))
        for name, records in methods.items()
    ]


def _row(records: list[RunRecord], test: MeanDifference, p_holm: float) -> Row:
    first, defined = records[0], _defined(records)
    called = [(record.get("metrics") or {}).get("n_called") for record in records]
    return Row(
        model=first["model"],
        task=first["task"],
        method=first["method"],
        spec=str(first.get("spec", first["method"])),
        metric=first["metric"],
        scores=tuple(record["score"] for record in records),
        n_diverged=sum(record["status"] == "diverged" for record in records),
        n_one_class=called.count(1),
        mean=float(np.mean(defined)) if defined else math.nan,
        sd=float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
        median=float(np.median(defined)) if defined else math.nan,
        **vars(test),
        p_holm=float(p_holm),
        seconds_per_epoch=_mean(record["seconds_per_epoch"] for record in records),
        peak_memory_mb=max(record["peak_memory_mb"] for record in records),
        records=tuple(records),
    )


def mean_difference(scores: Sequence[float], baseline: Sequence[float]) -> MeanDifference:
    """The difference of the means and its tests, which are NaN without variance.

    Examples
    --------
    >>> mean_difference([0.6, 0.7], [0.5, 0.5]).p_student
    0.095...
    """
    if not scores or not baseline:
        return MeanDifference()
    difference = float(np.mean(scores) - np.mean(baseline))
    few = min(len(scores), len(baseline)) < 2
    if few or (np.ptp(scores) == 0 and np.ptp(baseline) == 0):
        return MeanDifference(difference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores that are nearly identical
        welch = scipy.stats.ttest_ind(scores, baseline, equal_var=False)
        interval = welch.confidence_interval(0.95)
        student = scipy.stats.ttest_ind(scores, baseline, equal_var=True)
    return MeanDifference(
        difference,
        float(interval.low),
        float(interval.high),
        float(welch.pvalue),
        float(student.pvalue),
    )


def recorded_geometry(
    records: Sequence[RunRecord], when: str, tensor: str, name: str
) -> list[float]:
    """A metric of a tensor's geometry in each run, `when` being "before" or "after" training.

    NaN where it was not recorded.
    """
    found = [((r.get("geometry") or {}).get(when) or {}).get(tensor) for r in records]
    values = [None if one is None else one.get(name) for one in found]
    return [math.nan if value is None else value for value in values]


def _defined(records: Sequence[RunRecord]) -> list[float]:
    return [record["score"] for record in records if not math.isnan(record["score"])]


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text, scores times 100."""
    return text_table(HEAD, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    change = "" if math.isnan(row.difference) else f"{100 * row.difference:+.2f}"
    test = ("", "") if row.method == NONE else (f"{row.p:.3f}", f"{row.p_holm:.3f}")
    return (
        row.model,
        row.task,
        row.spec,
        row.metric,
        f"{100 * row.mean:.2f}",
        f"{100 * row.sd:.2f}",
        f"{100 * row.median:.2f}",
        change,
        *test,
        f"{row.seconds_per_epoch:.1f}",
        remarks(row),
    )


def remarks(row: Row) -> str:
    """What the scores alone don't show."""
    n = len(row.scores)
    undefined = sum(math.isnan(score) for score in row.scores) - row.n_diverged
    notes = [
        (row.n_diverged, "diverged"),
        (row.n_one_class, "called all items the same"),
        (undefined, "without a defined score"),
    ]
    found = [f"{count} of {n} {words}" for count, words in notes if count]
    if not row.records[0].get("divided", True):
        found.append("scored on a fifth of an undivided set")
    return "; ".join(found)

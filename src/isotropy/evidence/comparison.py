"""compare: every repair on every task, with the uncertainty of each difference."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from isotropy import checks, tables
from isotropy.errors import InputError, IsotropyWarning, brief, public
from isotropy.evidence.advice import percent, plain, signed
from isotropy.evidence.bench import (
    NO_ITEMS,
    TRANSDUCTIVE,
    Bench,
    Evaluation,
    OnProgress,
    Plan,
    bench_of,
    exclusion_note,
    no_progress,
    subsample,
)
from isotropy.evidence.change import linear_cka, neighbour_overlap
from isotropy.evidence.search import text_groups
from isotropy.evidence.significance import difference, holm, interval, p_value
from isotropy.evidence.spaces import (
    NONE,
    SENTENCE,
    Candidate,
    Space,
    as_candidate,
    as_encoder,
    default_candidates,
    with_groups,
)
from isotropy.metrics import isoscore, mean_cosine, partition_isotropy
from isotropy.models import Text
from isotropy.repairs import Repair
from isotropy.tasks import Outcome, Retrieval, Scorer, Task

N_NEIGHBOURS = 10
HEAD = ("repair", "score", "gain", "95 % interval", "p (Holm)")


@dataclass(frozen=True)
class Result:
    """One repair on one task; scores and differences are fractions.

    Attributes
    ----------
    score, difference, interval
        The score, the score less that without repair, and the 95 % interval of this difference,
        by paired bootstrap.
    p, p_holm : float
        Two-sided, by paired permutation, and adjusted for the number of repairs.
    isotropy : dict
        isoscore, mean_cosine and log10_partition_isotropy of the evaluated rows after the repair.
    cka, neighbour_overlap : float
        How similar the space is to that before the repair.
    shift : str
        A note if the evaluated texts differ from the fitted ones.
    compared_with : str
        Which texts a scorer compares documents with; "" without a scorer.
    """

    task: str
    metric: str
    candidate: Candidate
    score: float
    difference: float
    interval: tuple[float, float]
    p: float
    p_holm: float
    metrics: dict[str, float]
    isotropy: dict[str, float]
    cka: float
    neighbour_overlap: float
    n_items: int
    n_seeds: int
    fitted_on: str
    shift: str
    compared_with: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        found = {
            "task": self.task,
            "metric": self.metric,
            "repair": str(self.candidate),
            **self.candidate.to_dict(),
            **vars(self),
            "score": percent(self.score),
            "difference": percent(self.difference),
            "interval": [percent(end) for end in self.interval],
            "metrics": {name: percent(value) for name, value in self.metrics.items()},
            "isotropy": {name: _or_none(value) for name, value in self.isotropy.items()},
            "cka": _or_none(self.cka),
            "neighbour_overlap": _or_none(self.neighbour_overlap),
            "seconds": round(self.seconds, 2),
        }
        del found["candidate"]
        return found


@dataclass(frozen=True)
class Comparison:
    """Results of every repair on every task, none first."""

    results: list[Result]
    transductive: bool
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100; what `isotropy compare --json` prints."""
        return {
            "transductive": self.transductive,
            "notes": self.notes,
            "results": [result.to_dict() for result in self.results],
        }

    def _repr_html_(self) -> str:
        parts = [
            tables.html_table(HEAD, [cells(result) for result in part], title)
            for title, part in self._by_task().items()
        ]
        return "".join([*parts, *(tables.paragraph(note) for note in self.notes)])

    def _by_task(self) -> dict[str, list[Result]]:
        found: dict[str, list[Result]] = {}
        for r in self.results:
            title = f"{r.task}: {r.metric}, {r.n_items:,} items, fitted on {r.fitted_on}"
            found.setdefault(title, []).append(r)
        return found

    def __str__(self) -> str:
        lines = []
        for title, part in self._by_task().items():
            lines.append(title)
            lines.append(tables.text_table(HEAD, [cells(result) for result in part], {1, 2}))
        return "\n".join([*lines, *self.notes])


def _or_none(value: float) -> float | None:
    """The value, or None if it is undefined, as JSON has no NaN."""
    return value if math.isfinite(value) else None


def cells(result: Result) -> tuple[str, ...]:
    """Repair, score, gain, interval and p as text; the last three are empty without a repair."""
    head = (str(result.candidate), plain(100 * result.score))
    if result.candidate.is_none:
        return (*head, "", "", "")
    low, high = (signed(100 * end) for end in result.interval)
    return (*head, signed(100 * result.difference), f"{low} to {high}", f"{result.p_holm:.4f}")


@public
def compare(
    vectors: Any,
    tasks: Task | Sequence[Task],
    repairs: Any = None,
    *,
    fit_on: Sequence[Text] | None = None,
    transductive: bool = False,
    part: str | None = None,
    seeds: int = 5,
    n_folds: int = 5,
    max_items: int = 2000,
    seed: int = 0,
    groups: Any = None,
    progress: OnProgress | None = None,
) -> Comparison:
    """Every repair on every task: score, difference from none, interval, p-value, what changed.

    Parameters
    ----------
    vectors : Encoder, KeyedVectors, array of shape (len(task.texts), n_features), or anything \
            with `encode`
    tasks : Task or sequence of Task
    repairs : one or a sequence, optional
        Names ("center", "token/all-but-the-top:n_components=3"), repairs or candidates; by default
        every repair with its own defaults. Without a level they apply to tokens, as in the papers.
        In retrieval tasks also scorers ("csls", "local-scaling:k=5"), alone or after a repair
        ("center+csls").
    fit_on : list of texts, optional
        What repairs are fitted on, without the evaluated sentences. By default the corpus of a
        retrieval task, the other rows of keyed vectors, the training part, or, if the task has no
        parts, the other folds.
    transductive : bool
        Fit on the evaluated text itself, as the papers did; the results say so.
    part : {"train", "dev", "test", "all"}, optional
        What is evaluated: by default dev, then test, then everything in folds.
    seeds : int
        Number of fits of repairs that depend on a seed; their scores are averaged.
    n_folds, max_items, seed : int
        Folds of a task without parts, most items of the training part that a head is trained on,
        and the seed of all random draws.
    groups : sequence of length len(task.texts), or mapping of texts to labels, optional
        The group of each text; every repair is then also tried with one fit per group, as in
        `advise`. By default those that the task was read with, if any.
    progress : callable, optional
        Called with the task's name, how many repairs are done, and how many there are.
    """
    checks.integer(seeds, "seeds", 1)
    checks.integer(n_folds, "n_folds", 2)
    checks.integer(max_items, "max_items", 1)
    checks.integer(seed, "seed", 0)
    checks.function(progress, "progress")
    checks.flag(transductive, "transductive")
    if transductive and fit_on is not None:
        raise InputError(
            "fit_on must not be given with transductive, which fits on the evaluated text. Leave "
            "one of them out."
        )
    specs = [repairs] if isinstance(repairs, (str, Repair, Scorer, Candidate)) else repairs
    if specs is not None:
        specs = checks.listing(specs, "repairs")
    scorers = [c.scorer for c in (as_candidate(s, (SENTENCE,)) for s in specs or ()) if c.scorer]
    results: list[Result] = []
    notes: list[str] = []
    listed = [tasks] if isinstance(tasks, Task) else checks.listing(tasks, "tasks")
    if not listed or not all(isinstance(task, Task) for task in listed):
        raise InputError("tasks must be a Task or a list of at least one.")
    for given in listed:
        if scorers and not isinstance(given, Retrieval):
            raise InputError(
                f"{scorers[0]} must be used with a retrieval task, got {given.name!r}. Leave it "
                "out."
            )
        encoder = as_encoder(vectors, given.texts)
        apart = transductive or fit_on is not None
        task = _needed(given, part, apart, given.supervised or bool(scorers), max_items, seed)
        labels = text_groups(given, groups)
        tried = partial(_candidates, specs, bool(labels))
        bench = bench_of(encoder, task, tried, fit_on, text_groups=labels)
        plan = _planned(bench, part, transductive, n_folds, max_items, seed)
        found = _on_task(bench, plan, seeds, seed, progress or no_progress)
        said = [*bench.notes, *([exclusion_note(plan.n_removed)] if plan.n_removed else [])]
        said += [result.shift for result in found if result.shift][:1]
        said += dict.fromkeys(_compared_note(result) for result in found if result.compared_with)
        notes += [f"{task.name}: {note}" for note in said]
        results += found
    return Comparison(results, transductive, notes)


def _candidates(specs: Sequence[Any] | None, grouped: bool, space: Space) -> list[Candidate]:
    """The repairs to compare, by default all of them."""
    found = default_candidates(space.levels)
    if specs is not None:
        found = [as_candidate(spec, space.levels) for spec in specs]
    found = [candidate for candidate in found if not candidate.is_none]
    return with_groups(found) if grouped else found


def _evaluated_part(task: Task, part: str | None) -> str:
    """The part that is evaluated."""
    chosen = part or next(p for p in ("dev", "test", "all", "train") if p in task.parts)
    if chosen != "all" and (not isinstance(chosen, str) or chosen not in task.parts):
        raise InputError(
            f"part must be one of {', '.join(task.parts)} for {brief(task.name)}, got "
            f"{brief(chosen)}."
        )
    return chosen


def _compared_note(result: Result) -> str:
    """What a scorer compares documents with, in words."""
    where = f"among {result.compared_with}"
    return f"{result.candidate.scorer} looks for the neighbours of a document {where}."


def _needed(
    task: Task, part: str | None, fitted_apart: bool, learns: bool, max_items: int, seed: int
) -> Task:
    """The task with only the items that are evaluated, fitted on or learned from."""
    chosen = _evaluated_part(task, part)
    if chosen == "all":
        return task
    items = task.parts[chosen]
    train = task.parts.get("train", items)
    if fitted_apart:
        train = subsample(train, max_items, seed) if learns else items
    used = np.union1d(items, train)
    return task if len(used) == task.n_items else task.subset(used)


def _planned(
    bench: Bench, part: str | None, transductive: bool, n_folds: int, max_items: int, seed: int
) -> Plan:
    """What is evaluated, and what repairs are fitted on."""
    task = bench.task
    chosen = _evaluated_part(task, part)
    everything = np.sort(np.concatenate(list(task.parts.values())))
    items = everything if chosen == "all" else task.parts[chosen]
    known = NO_ITEMS if chosen in ("all", "train") else task.parts.get("train", NO_ITEMS)
    learned = subsample(known, max_items, seed)
    if transductive:
        if task.supervised and not len(learned):
            raise InputError(
                f"{task.name!r} must have a training part to be evaluated transductively."
            )
        plan = bench.evaluated(items)
    elif len(known):
        plan = bench.held_out(items, known)
    elif not task.supervised and (apart := bench.apart(items)) and not bench.missing(apart[0]):
        return bench.held_out(items, items)
    else:
        return bench.across(items, n_folds, seed)
    return replace(plan, evaluations=[Evaluation(items, learned, plan.evaluations[0].fits)])


def _on_task(bench: Bench, plan: Plan, seeds: int, seed: int, progress: OnProgress) -> list[Result]:
    """The results of no repair and of every candidate, adjusted for their number."""
    shared: dict[str, Any] = {
        "task": bench.task.name,
        "metric": bench.task.metric,
        "n_items": sum(len(evaluation.items) for evaluation in plan.evaluations),
        "fitted_on": plan.fitted_on,
    }
    start = time.perf_counter()
    baseline = bench.outcomes(Candidate(NONE), plan)
    bench.expect_defined(baseline, plan)
    unrepaired = _changed(bench, Candidate(NONE), plan) | {
        "difference": 0.0, "interval": (0.0, 0.0), "p": 1.0, "p_holm": 1.0, "cka": 1.0,
        "neighbour_overlap": 1.0, "n_seeds": 1, "shift": "", "compared_with": "",
        "seconds": time.perf_counter() - start,
    }  # fmt: skip
    results = [Result(**shared, **_scored(baseline), **unrepaired)]
    shifts: dict[str, str] = {}
    found = []
    for number, candidate in enumerate(bench.candidates):
        progress(bench.task.name, number, len(bench.candidates))
        start = time.perf_counter()
        fitted = candidate.method != NONE  # a scorer alone is not
        if fitted and plan.fitted_on != TRANSDUCTIVE and candidate.level not in shifts:
            shifts[candidate.level] = bench.shift_note(candidate.level, plan)
        outcomes = bench.outcomes(candidate, plan, seeds)
        folds = bench.folds(plan, outcomes, baseline)
        tested = {
            "difference": difference(folds),
            "interval": interval(folds, seed=seed),
            "p": p_value(folds, seed=seed),
            "n_seeds": seeds if candidate.seeded else 1,
            "shift": shifts.get(candidate.level, "") if fitted else "",
            "compared_with": bench.compared_with(candidate, plan),
        }
        if candidate.per_group and plan.by_group_on:
            tested["fitted_on"] = plan.by_group_on
        found.append(shared | _scored(outcomes) | tested | _changed(bench, candidate, plan))
        found[-1]["seconds"] = time.perf_counter() - start
    progress(bench.task.name, len(found), len(found))
    adjusted = holm([result["p"] for result in found])
    return results + [Result(p_holm=float(p), **r) for p, r in zip(adjusted, found, strict=True)]


def _scored(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means of the scores and of the secondary metrics."""
    names = outcomes[0].metrics
    return {
        "score": float(np.mean([outcome.value for outcome in outcomes])),
        "metrics": {n: float(np.mean([o.metrics[n] for o in outcomes])) for n in names},
    }


def _changed(bench: Bench, candidate: Candidate, plan: Plan) -> dict[str, Any]:
    """How a candidate changes the space of the first evaluation."""
    before, after = bench.rows_before_and_after(candidate, plan.evaluations[0])
    k = min(N_NEIGHBOURS, len(before) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        isotropy = {
            "isoscore": float(isoscore(after)),
            "mean_cosine": float(mean_cosine(after)),
            "log10_partition_isotropy": float(partition_isotropy(after, log=True)) / np.log(10),
        }
    return {
        "candidate": candidate,
        "isotropy": isotropy,
        "cka": linear_cka(before, after),
        "neighbour_overlap": neighbour_overlap(before, after, k=k) if k else math.nan,
    }

"""compare: every repair on every task, with the uncertainty of each difference."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy import checks, tables
from isotropy.errors import InputError, IsotropyWarning, brief, public
from isotropy.evidence.advice import percent, plain, signed
from isotropy.evidence.change import linear_cka, neighbour_overlap
from isotropy.evidence.significance import difference, holm, interval, p_value
from isotropy.evidence.spaces import NONE, SENTENCE, Candidate, defaults, encoder_of, parsed
from isotropy.evidence.trials import (
    TRANSDUCTIVE,
    Bench,
    Plan,
    Progress,
    Trial,
    Watch,
    excluded,
    far,
    nobody,
    sampled,
)
from isotropy.metrics import isoscore, mean_cosine, partition_isotropy
from isotropy.models.texts import Text
from isotropy.repairs import Repair
from isotropy.tasks import Outcome, Task

N_NEIGHBOURS = 10
HEAD = ("repair", "score", "gain", "95 % interval", "p (Holm)")


@dataclass(frozen=True)
class Result:
    """What one repair does on one task; fractions.

    Attributes
    ----------
    score, difference : float
        The score, and how much more it is than without repair.
    interval : (float, float)
        95 % interval of the difference, by paired bootstrap.
    p, p_holm : float
        Two-sided, by paired permutation, and adjusted for the number of repairs.
    isotropy : dict
        isoscore, mean_cosine and log10_partition_isotropy of the evaluated rows after the repair.
    cka, neighbour_overlap : float
        How much of the space is as before.
    shift : str
        That the evaluated texts differ from the fitted ones, where they do.
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
    seconds: float
    shift: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "metric": self.metric,
            "repair": str(self.candidate),
            **self.candidate.to_dict(),
            "score": percent(self.score),
            "difference": percent(self.difference),
            "interval": [percent(end) for end in self.interval],
            "p": self.p,
            "p_holm": self.p_holm,
            "metrics": {name: percent(value) for name, value in self.metrics.items()},
            "isotropy": {name: defined(value) for name, value in self.isotropy.items()},
            "cka": defined(self.cka),
            "neighbour_overlap": defined(self.neighbour_overlap),
            "n_items": self.n_items,
            "n_seeds": self.n_seeds,
            "fitted_on": self.fitted_on,
            "shift": self.shift,
            "seconds": round(self.seconds, 2),
        }


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
            tables.html_table(
                HEAD, [cells(result) for result in part], f"{task}: {_about(part[0])}"
            )
            for task, part in self._by_task().items()
        ]
        return "".join([*parts, *(tables.paragraph(note) for note in self.notes)])

    def _by_task(self) -> dict[str, list[Result]]:
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.task, []).append(result)
        return found

    def __str__(self) -> str:
        lines = []
        for task, part in self._by_task().items():
            lines.append(f"{task}: {_about(part[0])}")
            lines.append(tables.text_table(HEAD, [cells(result) for result in part], {1, 2}))
        return "\n".join([*lines, *self.notes])


def defined(value: float) -> float | None:
    """The value; None where it is undefined, as JSON has no NaN."""
    return value if math.isfinite(value) else None


def _about(result: Result) -> str:
    """What the results on a task have in common."""
    return f"{result.metric}, {result.n_items:,} items, fitted on {result.fitted_on}"


def cells(result: Result) -> tuple[str, ...]:
    """Repair, score, gain, interval and p as they are written; the last three not of none."""
    head = (str(result.candidate), plain(100 * result.score))
    if result.candidate.method == NONE:
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
    progress: Progress | None = None,
) -> Comparison:
    """Every repair on every task: score, difference from none, interval, p-value, what changed.

    Parameters
    ----------
    vectors : Encoder, KeyedVectors, array of shape (len(task.texts), n_features), or anything \
            with `encode`
    tasks : Task or sequence of Task
    repairs : one or a sequence, optional
        Names ("center", "token/all-but-the-top:n_components=3"), repairs or candidates; by default
        every repair with its own defaults. On tokens where the level is not said, as the papers do.
    fit_on : list of texts, optional
        What repairs are fitted on, without the evaluated sentences. By default the corpus of a
        search, of keyed vectors the others, the training part, or in an undivided task the other
        folds.
    transductive : bool
        Fit on the evaluated text itself, as the papers did; the results are labelled so.
    part : {"train", "dev", "test", "all"}, optional
        What is evaluated: by default dev, then test, then everything in folds.
    seeds : int
        Fits of repairs that depend on a seed; their scores are averaged.
    n_folds, max_items, seed : int
        Folds of an undivided task, items of the training part that a head is trained on at most,
        and the seed of all drawing.
    progress : callable, optional
        Called with the task's name, how many repairs are done, and how many there are.

    Returns
    -------
    Comparison
    """
    checks.integer(seeds, "seeds", 1)
    checks.integer(n_folds, "n_folds", 2)
    checks.integer(max_items, "max_items", 1)
    checks.integer(seed, "seed", 0)
    checks.function(progress, "progress")
    checks.flag(transductive, "transductive")
    if transductive and fit_on is not None:
        raise InputError(
            "fit_on must not be given with transductive, which fits on the evaluated "
            "text. Leave one of them out."
        )
    specs = [repairs] if isinstance(repairs, (str, Repair, Candidate)) else repairs
    if specs is not None:
        specs = checks.listing(specs, "repairs")
    for spec in specs or ():
        parsed(spec, (SENTENCE,))  # refused before anything is encoded
    results: list[Result] = []
    notes: list[str] = []
    for whole in _listed(tasks):
        encoder = encoder_of(vectors, whole.texts)
        task = needed(whole, part, transductive or fit_on is not None, max_items, seed)
        bench = Bench(encoder, task, (), fit_on)
        levels = bench.space.levels
        wanted = defaults(levels) if specs is None else [parsed(spec, levels) for spec in specs]
        bench.candidates = [c for c in wanted if c.method != NONE]
        plan = planned(bench, part, transductive, n_folds, max_items, seed)
        found = on_task(bench, plan, seeds, seed, progress or nobody)
        said = [*bench.notes, *([excluded(plan.n_removed)] if plan.n_removed else [])]
        said += [result.shift for result in found if result.shift][:1]
        notes += [f"{task.name}: {note}" for note in said]
        results += found
    return Comparison(results, transductive, notes)


def _listed(tasks: Task | Sequence[Task]) -> Sequence[Task]:
    found = [tasks] if isinstance(tasks, Task) else checks.listing(tasks, "tasks")
    if not len(found) or not all(isinstance(task, Task) for task in found):
        raise InputError("tasks must be a Task or a list of at least one.")
    return found


def evaluated_part(task: Task, part: str | None) -> str:
    """The part that is evaluated."""
    chosen = part or next(p for p in ("dev", "test", "all", "train") if p in task.parts)
    if chosen != "all" and (not isinstance(chosen, str) or chosen not in task.parts):
        raise InputError(
            f"part must be one of {', '.join(task.parts)} of {brief(task.name)}, got "
            f"{brief(chosen)}."
        )
    return chosen


def needed(task: Task, part: str | None, fitted_apart: bool, max_items: int, seed: int) -> Task:
    """The task with the items that are evaluated, fitted on or learned from, and no others."""
    chosen = evaluated_part(task, part)
    if chosen == "all":
        return task
    items = task.parts[chosen]
    train = task.parts.get("train", items)
    if fitted_apart:
        train = sampled(train, max_items, seed) if task.supervised else items
    used = np.union1d(items, train)
    return task if len(used) == task.n_items else task.subset(used)


def planned(
    bench: Bench, part: str | None, transductive: bool, n_folds: int, max_items: int, seed: int
) -> Plan:
    """What is evaluated, and what repairs are fitted on."""
    task = bench.task
    chosen = evaluated_part(task, part)
    everything = np.sort(np.concatenate(list(task.parts.values())))
    items = everything if chosen == "all" else task.parts[chosen]
    known = np.empty(0, dtype=np.int64)
    if chosen != "all" and "train" in task.parts and chosen != "train":
        known = task.parts["train"]
    learned = sampled(known, max_items, seed)
    if transductive:
        trial = bench.evaluated(items).trials[0]
        if task.supervised and not len(learned):
            raise InputError(
                f"{task.name!r} must have a training part to evaluate it transductively."
            )
        return Plan([Trial(items, learned, trial.fits)], TRANSDUCTIVE)
    if len(known):
        plan = bench.held_out(items, known)
        trial = plan.trials[0]
        return Plan([Trial(items, learned, trial.fits)], plan.fitted_on, plan.n_removed)
    if not task.supervised and bench.apart(items) is not None:
        return bench.held_out(items, items)
    return bench.across(items, n_folds, seed)


def on_task(
    bench: Bench, plan: Plan, seeds: int, seed: int, progress: Progress = nobody
) -> list[Result]:
    """The results of none and of every candidate, adjusted for their number."""
    shared: dict[str, Any] = {
        "task": bench.task.name,
        "metric": bench.task.metric,
        "n_items": sum(len(trial.items) for trial in plan.trials),
        "fitted_on": plan.fitted_on,
    }
    watch = Watch()
    baseline = bench.outcomes(Candidate(NONE), plan)
    bench.expect_defined(baseline, plan)
    unrepaired = changed(bench, Candidate(NONE), plan) | {
        "difference": 0.0, "interval": (0.0, 0.0), "p": 1.0, "p_holm": 1.0, "cka": 1.0,
        "neighbour_overlap": 1.0, "n_seeds": 1, "seconds": watch.seconds,
    }  # fmt: skip
    results = [Result(**shared, **scored(baseline), **unrepaired)]
    shifts: dict[str, str] = {}
    found = []
    for number, candidate in enumerate(bench.candidates):
        progress(bench.task.name, number, len(bench.candidates))
        watch = Watch()
        if plan.fitted_on != TRANSDUCTIVE and candidate.level not in shifts:
            shifts[candidate.level] = far(bench, candidate.level, plan)
        outcomes = bench.outcomes(candidate, plan, seeds)
        folds = bench.folds(plan, outcomes, baseline)
        tested = {
            "difference": difference(folds),
            "interval": interval(folds, seed=seed),
            "p": p_value(folds, seed=seed),
            "n_seeds": seeds if candidate.seeded else 1,
            "shift": shifts.get(candidate.level, ""),
        }
        found.append(shared | scored(outcomes) | tested | changed(bench, candidate, plan))
        found[-1]["seconds"] = watch.seconds
    progress(bench.task.name, len(found), len(found))
    adjusted = holm([result["p"] for result in found])
    return results + [Result(p_holm=float(p), **r) for p, r in zip(adjusted, found, strict=True)]


def scored(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means of the scores and of the secondary figures."""
    names = outcomes[0].metrics
    return {
        "score": float(np.mean([outcome.value for outcome in outcomes])),
        "metrics": {n: float(np.mean([o.metrics[n] for o in outcomes])) for n in names},
    }


def changed(bench: Bench, candidate: Candidate, plan: Plan) -> dict[str, Any]:
    """What a candidate makes of the space of the first trial."""
    before, after = bench.rows_before_and_after(candidate, plan.trials[0])
    n_neighbours = min(N_NEIGHBOURS, len(before) - 1)
    return {
        "candidate": candidate,
        "isotropy": geometry(after),
        "cka": linear_cka(before, after),
        "neighbour_overlap": neighbour_overlap(before, after, k=n_neighbours)
        if n_neighbours
        else math.nan,
    }


def geometry(rows: Any) -> dict[str, float]:
    """The three figures of isotropy that tell most, of some rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        return {
            "isoscore": float(isoscore(rows)),
            "mean_cosine": float(mean_cosine(rows)),
            "log10_partition_isotropy": float(partition_isotropy(rows, log=True)) / np.log(10),
        }

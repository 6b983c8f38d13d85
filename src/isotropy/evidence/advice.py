"""advise: which repair, if any, by choosing and testing on items kept apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isotropy import checks
from isotropy.errors import InputError
from isotropy.evidence.candidates import NONE, Candidate, fit_alone, searched
from isotropy.evidence.significance import Fold, difference, interval, items_needed
from isotropy.evidence.spaces import Integers
from isotropy.evidence.trials import Bench, Watch, sampled
from isotropy.linalg import Floats
from isotropy.repairs import Repair
from isotropy.sources.texts import Text
from isotropy.tasks import Task

LEVEL = 0.025  # of the one-sided test that a recommendation must pass
N_DRAWS = 1999  # of the bootstrap that gives standard errors, and chance
LEAST_ITEMS = 20


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    Attributes
    ----------
    choice : Candidate
        A repair with its parameters and level, or none.
    repair : Repair or None
        The chosen repair, fitted and ready to be saved.
    baseline, score : float
        Without repair and with the choice, on items that were not used to choose; fractions.
    interval : (float, float)
        95 % interval of the difference, by paired bootstrap.
    p : float
        Of the one-sided test of the whole procedure; at most 0.025 where something is chosen.
    reason : str
    candidates : list of dict
        What each candidate got inside, the simplest first.
    fitted_on : str
        What repairs were fitted on.
    by_fit_text : dict
        Name of each fitting text: what would be chosen with it; where several were given.
    """

    choice: Candidate
    repair: Repair | None
    baseline: float
    score: float
    interval: tuple[float, float]
    p: float
    reason: str
    candidates: list[dict[str, Any]]
    task: str
    metric: str
    n_items: int
    scored_on: str
    fitted_on: str
    items_needed: int
    seconds: float
    by_fit_text: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100; what `isotropy advise --json` prints."""
        return {
            "choice": self.choice.method,
            "params": dict(self.choice.params),
            "level": self.choice.level if self.choice.method != NONE else None,
            "baseline": percent(self.baseline),
            "score": percent(self.score),
            "interval": [percent(end) for end in self.interval],
            "p": self.p,
            "reason": self.reason,
            "candidates": self.candidates,
            "task": self.task,
            "metric": self.metric,
            "n_items": self.n_items,
            "scored_on": self.scored_on,
            "fitted_on": self.fitted_on,
            "items_needed": self.items_needed,
            "by_fit_text": self.by_fit_text,
            "seconds": round(self.seconds, 2),
        }

    def __str__(self) -> str:
        head = "Leave it alone." if self.choice.method == NONE else f"Repair it: {self.choice}."
        lines = [head, self.reason]
        for name, other in self.by_fit_text.items():
            lines.append(f"Fitted on {name}: {other['choice']} ({other['score']:.1f} inside).")
        return "\n".join(lines)


def percent(value: float) -> float | None:
    """A fraction times 100, to four decimals; None where it is undefined."""
    return None if math.isnan(value) else round(100 * value, 4)


def advise(
    vectors: Any,
    task: Task | None = None,
    fit_on: Sequence[Text] | Mapping[str, Sequence[Text]] | None = None,
    *,
    budget: int = 24,
    candidates: Sequence[Candidate] | None = None,
    n_folds: int = 5,
    max_items: int = 2000,
    seed: int = 0,
) -> Advice:
    """Whether a repair helps on a task, and which: chosen by cross-validation, tested apart.

    Inside, candidates are compared on folds and the simplest is taken that is within one standard
    error of the best, the error being that of their paired difference. Outside, that procedure is
    tested as a whole: what it chooses without a fold is compared with no repair on that fold. It
    recommends something only where this one-sided test holds at 2.5 %.

    Parameters
    ----------
    vectors : Encoder, array of shape (len(task.texts), n_features), or anything with `encode`
    task : Task
        Its training part is what is chosen with, and its test part (dev where test has no labels)
        what the choice is scored on; an undivided task is scored on the outer folds.
    fit_on : list of texts, or mapping of names to such, optional
        What repairs are fitted on. By default the corpus, or the text of the other items.
        With several, the first is used, and the advice says what each would have led to.
    budget : int
        Candidates tried at most, the simplest first.
    candidates : sequence of Candidate, optional
        What to search, the simplest first, instead of the default.
    n_folds, max_items, seed : int
        Folds, items of the training part used at most, and the seed of both.

    Returns
    -------
    Advice

    Notes
    -----
    Candidates are fitted without labels, so one fit a fold serves choosing and testing: what is
    chosen for a fold never depends on that fold's labels except through heads trained on other
    folds. Seeds of clusterings are fixed.
    """
    watch = Watch()
    if task is None:
        raise InputError(
            "advise: task must be given, got None. Without labels use diagnose(vectors, texts)."
        )
    checks.integer(n_folds, "n_folds", "advise", 2)
    texts = _named(fit_on)
    runs = {
        name: Search(vectors, task, part, budget, candidates, n_folds, max_items, seed)
        for name, part in texts.items()
    }
    first, *_ = runs
    by_fit_text = {
        name: {"choice": str(run.candidates[run.chosen]), "score": percent(run.inside(run.chosen))}
        for name, run in runs.items()
        if len(runs) > 1
    }
    return runs[first].advice(watch, by_fit_text)


def _named(fit_on: Any) -> dict[str, Any]:
    if isinstance(fit_on, Mapping):
        if not fit_on:
            raise InputError("advise: fit_on must name at least one text, got none.")
        return dict(fit_on)
    return {"": fit_on}


class Search:
    """The choice among candidates on the folds of a task's items, and its test."""

    def __init__(
        self,
        vectors: Any,
        task: Task,
        fit_on: Sequence[Text] | None,
        budget: int,
        candidates: Sequence[Candidate] | None,
        n_folds: int,
        max_items: int,
        seed: int,
    ) -> None:
        inside, self.scored_on, self.outside = divided(task, max_items, seed)
        used = inside if self.outside is None else np.union1d(inside, self.outside)
        if len(used) < task.n_items:
            task = task.subset(used)
            inside, self.scored_on, self.outside = divided(task, max_items, seed)
        self.task, self.seed = task, seed
        if len(inside) < LEAST_ITEMS:
            raise InputError(
                f"advise: {task.name!r} must have at least {LEAST_ITEMS} labelled items to choose "
                f"with, got {len(inside)}."
            )
        self.inside_items = inside
        self.bench = Bench(vectors, task, candidates or (), fit_on, "advise")
        levels, width = self.bench.space.levels, self.bench.space.pooled.shape[1]
        self.candidates = list(candidates or searched(levels, width))[: max(budget, 2)]
        if self.candidates[0].method != NONE:
            self.candidates.insert(0, Candidate(NONE))
        self.bench.candidates = self.candidates
        self.plan = self.bench.across(inside, n_folds, seed)
        self.outcomes = [self.bench.outcomes(c, self.plan) for c in self.candidates]
        self.values = np.array([[o.value for o in outcomes] for outcomes in self.outcomes])
        if np.isnan(self.values[0]).any():
            raise InputError(
                f"advise: {task.name!r} must have labels that vary in every fold, got constant "
                "ones. Give more items."
            )
        self.undefined = np.isnan(self.values).any(axis=1)
        self.draws = self._resampled()
        self.covariances = [np.atleast_2d(np.cov(part)) for part in self.draws.transpose(1, 0, 2)]
        self.chosen = int(self.choice(self.values.T[None], self._all)[0])

    @property
    def _all(self) -> Integers:
        return np.arange(len(self.plan.trials))

    def _resampled(self) -> Floats:
        """Scores of (candidate, fold, draw), where all candidates have the same groups drawn."""
        found = np.empty((len(self.candidates), len(self.plan.trials), N_DRAWS))
        for k, trial in enumerate(self.plan.trials):
            weights = group_weights(self.task.groups[trial.items], N_DRAWS, [self.seed, k])
            for c, outcomes in enumerate(self.outcomes):
                drawn = outcomes[k].resampled(weights)
                found[c, k] = np.where(np.isnan(drawn), outcomes[k].value, drawn)
        return np.nan_to_num(found)

    def choice(self, values: Floats, folds: Integers) -> Integers:
        """The simplest candidate within one standard error of the best on these folds.

        Of many sets of scores at once: values has the shape (n_sets, n_folds, n_candidates).
        """
        means = np.where(self.undefined, -np.inf, values[:, folds].mean(axis=1))
        total = sum(self.covariances[k] for k in folds) / len(folds) ** 2
        variances = np.diag(total)
        errors = np.sqrt(np.maximum(variances[:, None] + variances - 2 * total, 0))
        best = means.argmax(axis=1)
        top = np.take_along_axis(means, best[:, None], axis=1)
        within: Integers = (means >= top - errors[best]).argmax(axis=1)
        return within

    def gains(self, values: Floats) -> tuple[Floats, Integers]:
        """What the procedure gains over none on folds it did not see, and what it chose for each.

        The sum over folds of what is chosen without a fold, less none, on that fold, in standard
        errors: a sure gain by a simple candidate must not drown in what noisy ones gain by chance.
        """
        sets = np.arange(len(values))
        chosen = np.stack([self.choice(values, np.delete(self._all, k)) for k in self._all])
        gained, variance = np.zeros(len(values)), np.zeros(len(values))
        for k, covariance in enumerate(self.covariances):
            of_lead = np.diag(covariance) + covariance[0, 0] - 2 * covariance[0]
            gained += values[sets, k, chosen[k]] - values[:, k, 0]
            variance += np.maximum(of_lead, 0)[chosen[k]]
        return gained / np.sqrt(np.where(variance > 0, variance, np.inf)), chosen

    def tested(self) -> tuple[list[Fold], float]:
        """What is chosen without each fold against none on that fold, and its one-sided p.

        Choosing for a fold sees the others, and each of these is tested with what was chosen
        partly by this one: a candidate that is lucky everywhere is chosen everywhere. So the gain
        is held against what the same procedure gains where no candidate differs from none: on the
        bootstrap's scores, each moved to the same mean.
        """
        gain, chosen = self.gains(self.values.T[None])
        null = (self.draws - self.draws.mean(axis=2, keepdims=True)).transpose(2, 1, 0)
        chance, _ = self.gains(null)
        p = float(1 + (chance >= gain[0] - 1e-12).sum()) / (1 + len(chance))
        folds = [
            Fold(self.outcomes[int(c)][k], self.outcomes[0][k], self.task.groups[trial.items])
            for k, (trial, c) in enumerate(zip(self.plan.trials, chosen[:, 0], strict=True))
        ]
        return folds, p

    def advice(self, watch: Watch, by_fit_text: dict[str, dict[str, Any]]) -> Advice:
        outer, p = self.tested()
        wanted = self.candidates[self.chosen]
        recommended = self.chosen != 0 and p <= LEVEL
        choice = wanted if recommended else Candidate(NONE)
        repair = None
        scored = outer if recommended and self.outside is None else self._outside(choice)
        if recommended:
            repair = fit_alone(choice, self._text_to_ship(choice.level))
        system = [fold.system for fold in scored]
        baseline = [fold.baseline for fold in scored]
        ends = interval(scored, seed=self.seed) if recommended else (0.0, 0.0)
        rival = self._rival()
        return Advice(
            choice=choice,
            repair=repair,
            baseline=float(np.mean([o.value for o in baseline])),
            score=float(np.mean([o.value for o in system])),
            interval=ends,
            p=p,
            reason=self._reason(recommended, wanted, outer, p, scored, ends),
            candidates=self._table(),
            task=self.task.name,
            metric=self.task.metric,
            n_items=sum(fold.n_items for fold in scored),
            scored_on=self.scored_on,
            fitted_on=self.plan.fitted_on,
            items_needed=items_needed(rival, seed=self.seed),
            seconds=watch.seconds,
            by_fit_text=by_fit_text,
        )

    def _outside(self, choice: Candidate) -> list[Fold]:
        """The choice and none on the part that was not used to choose, or on the folds."""
        if self.outside is None:
            plan = self.plan
        else:
            plan = self.bench.held_out(self.outside, self.inside_items)
        none = self.bench.outcomes(Candidate(NONE), plan)
        system = none if choice.method == NONE else self.bench.outcomes(choice, plan)
        return self.bench.folds(plan, system, none)

    def _text_to_ship(self, level: str) -> Any:
        """Everything that a shipped repair may be fitted on."""
        plan = (
            self.bench.held_out(self.outside, self.inside_items)
            if (self.outside is not None)
            else self.bench.evaluated(self.inside_items)
        )
        return self.bench.fit_rows(level, plan)

    def _rival(self) -> list[Fold]:
        """The best repair inside against none."""
        means = np.where(self.undefined, -np.inf, self.values.mean(axis=1))
        best = 1 + int(means[1:].argmax())
        return self.bench.folds(self.plan, self.outcomes[best], self.outcomes[0])

    def inside(self, candidate: int) -> float:
        """Mean score on the folds."""
        return float(self.values[candidate].mean())

    def _table(self) -> list[dict[str, Any]]:
        errors = (self.draws - self.draws[0]).mean(axis=1).std(axis=1)
        means = self.values.mean(axis=1)
        return [
            c.to_dict()
            | {
                "score": percent(float(means[i])) if np.isfinite(means[i]) else None,
                "difference": percent(float(means[i] - means[0]))
                if np.isfinite(means[i])
                else None,
                "standard_error": percent(float(errors[i])),
            }
            for i, c in enumerate(self.candidates)
        ]

    def _reason(
        self,
        recommended: bool,
        wanted: Candidate,
        outer: list[Fold],
        p: float,
        scored: list[Fold],
        ends: tuple[float, float],
    ) -> str:
        n = len(self.inside_items)
        gain = 100 * difference(outer)
        if recommended:
            low, high = (100 * end for end in ends)
            before, after = (
                100 * float(np.mean([getattr(fold, side).value for fold in scored]))
                for side in ("baseline", "system")
            )
            return (
                f"{wanted}, fitted on {self.plan.fitted_on}, takes {self.task.metric} from "
                f"{before:.1f} to {after:.1f} on {self.scored_on} ({after - before:+.1f}, 95 % "
                f"interval {low:+.1f} to {high:+.1f}). Choosing it was tested on folds it did not "
                f"see: {gain:+.1f} on {n:,} items, one-sided p = {p:.4f}."
            )
        if self.chosen == 0:
            best = 100 * difference(self._rival())
            return (
                f"On {n:,} items no repair is better than none by more than one standard error "
                f"of the difference (the best of {len(self.candidates) - 1}: {best:+.1f})."
            )
        return (
            f"{wanted} looked best inside, but on folds that it was not chosen with the procedure "
            f"gains {gain:+.1f} on {n:,} items, one-sided p = {p:.3f}, which is not below "
            f"{LEVEL}."
        )


def divided(task: Task, max_items: int, seed: int) -> tuple[Integers, str, Integers | None]:
    """(items to choose with, name of what is scored on, items of that part or None for folds)."""
    order = [part for part in ("test", "dev") if part in task.parts]
    if order and len(task.parts) > 1:
        scored = order[0]
        chosen_with = "train" if "train" in task.parts else "dev"
        if chosen_with != scored:
            outside = task.parts[scored]
            shared = np.isin(task.members[task.parts[chosen_with]], task.texts_of(outside))
            clean = task.parts[chosen_with][~shared.any(axis=1)]
            return sampled(clean, max_items, seed), f"the {scored} part", outside
    items = np.concatenate(list(task.parts.values()))
    return sampled(np.sort(items), max(max_items, len(items)), seed), "folds not chosen with", None


def group_weights(groups: Integers, n_draws: int, seed: Sequence[int]) -> Any:
    """How often each item counts in each draw of whole groups with replacement."""
    _, places = np.unique(groups, return_inverse=True)
    n = int(places.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_draws)
    return drawn[:, places]

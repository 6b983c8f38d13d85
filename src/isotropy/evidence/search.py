"""The search behind `advise`: choosing a repair, and testing the choice on items kept apart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from isotropy import checks
from isotropy.errors import InputError, brief, public
from isotropy.evidence.advice import Advice, percent, plain, signed
from isotropy.evidence.bench import (
    TRAINING,
    Bench,
    OnProgress,
    Plan,
    bench_of,
    distinct_texts,
    no_progress,
)
from isotropy.evidence.significance import Fold, difference, group_counts, interval, items_needed
from isotropy.evidence.spaces import (
    NONE,
    SENTENCE,
    Candidate,
    Integers,
    Space,
    as_candidate,
    as_encoder,
    by_sharing,
    search_grid,
    with_groups,
)
from isotropy.evidence.split import Split, disjoint, divided, effective_groups
from isotropy.linalg import Floats
from isotropy.models import Text
from isotropy.repairs import Repair
from isotropy.repairs.per_group import Label, as_labels
from isotropy.tasks import Outcome, Task

LEVEL = 0.025  # of the one-sided test that a recommendation must pass
N_DRAWS = 1999  # of the bootstrap that gives standard errors, and chance
LEAST_ITEMS = 20
GROUPS_A_FOLD = 10
LEAST_GROUPS = 20  # effective groups of items that a test needs


@public
def advise(
    vectors: Any,
    task: Task | None = None,
    fit_on: Sequence[Text] | Mapping[str, Sequence[Text]] | None = None,
    *,
    budget: int = 24,
    candidates: Sequence[Any] | None = None,
    n_folds: int = 5,
    max_items: int = 2000,
    seed: int = 0,
    transductive: bool = False,
    groups: Sequence[Label] | Mapping[Text, Label] | None = None,
    progress: OnProgress | None = None,
) -> Advice:
    """Whether a repair helps on a task, and which: chosen by cross-validation, then tested.

    Candidates are compared on folds. The choice is the simplest candidate within one standard
    error of the best, where the error is that of their paired difference. This selection procedure
    is then tested as a whole: what it chooses without a fold is compared with no repair on that
    fold. A repair is recommended only if this one-sided test is significant at 2.5 %.

    Parameters
    ----------
    vectors : Encoder, KeyedVectors, array of shape (len(task.texts), n_features), or anything \
            with `encode`
    task : Task
        Its training part is used to choose, and its test part (dev if test has no labels) to score
        the choice. A task without parts, or whose parts share most of their sentences, is scored
        on the held-out folds. `items` of the advice says what was used.
    fit_on : list of texts, or mapping of names to such lists, optional
        What repairs are fitted on. By default the corpus, or the text of the other items.
        With several, the first is used, and the advice says what each would have led to.
    budget : int
        Most repairs to try, simplest first; with groups, each is tried per group too.
    candidates : sequence, optional
        What to search instead of the built-in repairs, simplest first; written as for `compare`.
    n_folds, max_items, seed : int
        Number of folds, most items of the training part to use, and the seed of both.
    transductive : bool
        Fit on the text of all items, including the scored ones, as the papers did; `fitted_on`
        says so.
    groups : sequence of length len(task.texts), or mapping of texts to labels, optional
        The group of each text, such as its language; `task.towers` of a retrieval task for queries
        and documents. Every repair is then also tried with one fit per group: see `PerGroup`. By
        default those that the task was read with, if any.
    progress : callable, optional
        Called with a name, how many candidates are done, and how many there are.

    Notes
    -----
    Candidates are fitted without labels, so one fit per fold serves choosing and testing: what is
    chosen for a fold depends on that fold's labels only through heads trained on other folds.
    Clusterings have fixed seeds.
    """
    start = time.perf_counter()
    if task is None:
        raise InputError(
            "task must be given, got None. Without labels use isotropy.diagnose(vectors, texts)."
        )
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, got {type(task).__name__}.")
    if transductive and fit_on is not None:
        raise InputError("fit_on must not be given with transductive. Leave one of them out.")
    if candidates is not None:
        candidates = checks.listing(candidates, "candidates")
    progress = progress or no_progress
    found = text_groups(task, groups)
    options = Options(budget, candidates, n_folds, max_items, seed, transductive, progress, found)
    by_name = searches(vectors, task, _named(fit_on), options)
    first = next(iter(by_name.values()))
    if len(first.bench.candidates) == 1:
        raise InputError("candidates must hold a repair, got none.")
    several = len(by_name) > 1
    by_fit_text = {name: search.summary() for name, search in by_name.items() if several}
    advice = first.advice()
    return replace(advice, by_fit_text=by_fit_text, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class Options:
    """The options of `advise` that say how to search."""

    budget: int = 24
    candidates: Sequence[Any] | None = None
    n_folds: int = 5
    max_items: int = 2000
    seed: int = 0
    transductive: bool = False
    progress: OnProgress = no_progress
    text_groups: Mapping[Text, Label] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.flag(self.transductive, "transductive")
        checks.integer(self.n_folds, "n_folds", 2)
        checks.integer(self.max_items, "max_items", LEAST_ITEMS)
        checks.integer(self.budget, "budget", 1)
        checks.integer(self.seed, "seed", 0)
        checks.function(self.progress, "progress")

    def chosen_from(self, space: Space) -> list[Candidate]:
        """The candidates to try, none first."""
        wanted = self.candidates or search_grid(space.levels, space.pooled.shape[1])
        repairs = [c for c in (as_candidate(s, space.levels) for s in wanted) if c.method != NONE]
        repairs = repairs[: self.budget]
        return [Candidate(NONE), *(with_groups(repairs) if self.text_groups else repairs)]


def text_groups(task: Task, groups: Any) -> dict[Text, Label]:
    """The group of each text of a task; nothing if there are none."""
    if groups is None:
        groups = task.text_groups
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        missing = [text for text in task.texts if text not in groups]
        if missing:
            raise InputError(
                f"groups must have every text of the task, got none for {len(missing):,}, such as "
                f"{brief(missing[0])}."
            )
        texts, given = list(groups), list(groups.values())
    else:
        texts, given = list(task.texts), checks.listing(groups, "groups")
        if len(given) != len(texts):
            raise InputError(
                f"groups must be as many as the {len(texts):,} texts of the task, got "
                f"{len(given):,}. List the group of each of task.texts."
            )
    found = dict(zip(texts, as_labels(given).tolist(), strict=True))
    if len(set(found.values())) < 2:
        raise InputError(f"groups must be 2 or more, got {brief(given[0])} for every text.")
    return found


def _named(fit_on: Any) -> dict[str, Sequence[Text] | None]:
    """The texts to fit on by name."""
    if not isinstance(fit_on, Mapping):
        return {"": None if fit_on is None else distinct_texts(fit_on)}
    if not fit_on:
        raise InputError("fit_on must name at least one text, got none.")
    return {name: distinct_texts(texts) for name, texts in fit_on.items()}


def searches(
    vectors: Any, task: Task, fit_on: dict[str, Sequence[Text] | None], options: Options
) -> dict[str, Search]:
    """A search for each of the texts to fit on, which share the space of the task's texts."""
    encoder = as_encoder(vectors, task.texts)
    for spec in options.candidates or ():
        if as_candidate(spec, (SENTENCE,)).scorer:  # refused before anything is encoded
            raise InputError(
                f"candidates must be repairs, got the scorer {str(spec)!r}. Use `compare` for it."
            )
    split = divided(task, options.max_items, options.seed)
    _expect_enough(split.inside, task)
    task, (inside, outside) = split.task(task), split.within()
    bench = bench_of(
        encoder,
        task,
        options.chosen_from,
        transductive=options.transductive,
        text_groups=options.text_groups,
    )
    if outside is not None:
        inside = disjoint(bench.task, inside, outside)
    _expect_enough(inside, task)
    split = split.without(len(split.inside) - len(inside))
    return {
        name: Search(replace(bench, fit_on=texts), split, inside, outside, options)
        for name, texts in fit_on.items()
    }


def _expect_enough(inside: Integers, task: Task) -> None:
    if len(inside) < LEAST_ITEMS:
        raise InputError(
            f"{task.name!r} must have at least {LEAST_ITEMS} labelled items to choose with, got "
            f"{len(inside)}. Give more items."
        )


@dataclass(frozen=True, eq=False)
class Search:
    """The choice among candidates on the folds of a task's items, and its test."""

    bench: Bench  # whose first candidate is no repair
    split: Split
    inside: Integers  # items used to choose
    outside: Integers | None  # items to score the choice; None for held-out folds
    options: Options

    @property
    def task(self) -> Task:
        return self.bench.task

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.bench.candidates

    @cached_property
    def n_groups(self) -> float:
        """Effective groups of the items used to choose."""
        return effective_groups(self.task.groups[self.inside])

    @cached_property
    def plan(self) -> Plan:
        """The folds that candidates are compared on."""
        most = max(2, len(np.unique(self.task.groups[self.inside])) // GROUPS_A_FOLD)
        n_folds = min(self.options.n_folds, most)
        return self.bench.across(self.inside, n_folds, self.options.seed)

    @cached_property
    def outcomes(self) -> list[list[Outcome]]:
        """The outcome of every candidate on each fold."""
        found: dict[int, list[Outcome]] = {}
        for number in by_sharing(self.candidates):
            self.options.progress(self.task.name, len(found), len(self.candidates))
            candidate = self.candidates[number]
            found[number] = self.bench.outcomes(candidate, self.plan)
            if candidate.method == NONE:
                self.bench.expect_defined(found[number], self.plan)
        self.options.progress(self.task.name, len(found), len(found))
        return [found[number] for number in range(len(found))]

    @cached_property
    def values(self) -> Floats:
        """The score of every candidate on each fold."""
        return np.array([[o.value for o in outcomes] for outcomes in self.outcomes])

    @cached_property
    def undefined(self) -> Any:
        """Which candidates lack a score on some fold."""
        return np.isnan(self.values).any(axis=1)

    @cached_property
    def draws(self) -> Floats:
        """Bootstrapped scores of (candidate, fold, draw); candidates share the groups drawn.

        Draws in which a score is undefined are replaced by others. The deviations of a fold are
        widened, since a bootstrap of few or uneven groups understates them.
        """
        found = np.empty((len(self.candidates), len(self.plan.evaluations), N_DRAWS))
        for k, evaluation in enumerate(self.plan.evaluations):
            groups = self.task.groups[evaluation.items]
            numbers, places = np.unique(groups, return_inverse=True)
            random = np.random.default_rng([self.options.seed, k])
            weights = group_counts(random, N_DRAWS, len(numbers))[:, places]
            drawn = np.stack([outcomes[k].resampled(weights) for outcomes in self.outcomes])
            drawn[self.undefined] = 0.0
            defined = np.flatnonzero(np.isfinite(drawn).all(axis=0))
            if not len(defined):
                raise InputError(
                    f"{self.task.name!r} must have enough items in every fold, got "
                    f"{len(evaluation.items)}, too few to draw from. Give more items."
                )
            drawn = drawn[:, np.resize(defined, N_DRAWS)]
            middle = drawn.mean(axis=1, keepdims=True)
            n = effective_groups(groups)
            found[:, k] = middle + (drawn - middle) * np.sqrt(n / max(n - 1, 0.1))
        return found

    @cached_property
    def covariances(self) -> list[Floats]:
        """The covariance of the candidates' scores on each fold."""
        return [np.atleast_2d(np.cov(part)) for part in self.draws.transpose(1, 0, 2)]

    @cached_property
    def chosen(self) -> int:
        """Number of the candidate chosen on all folds."""
        return int(self.choice(self.values.T[None], np.arange(self.values.shape[1]))[0])

    def choice(self, values: Floats, folds: Integers) -> Integers:
        """The simplest candidate within one standard error of the best on these folds.

        For many sets of scores at once: values has the shape (n_sets, n_folds, n_candidates).
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
        """(gain of the selection procedure over none on held-out folds, what it chose for each).

        The sum over folds of what is chosen without a fold, less none, on that fold, in standard
        errors, so that noisy candidates that gain by chance don't hide a sure gain by a simple one.
        """
        sets, folds = np.arange(len(values)), np.arange(values.shape[1])
        chosen = np.stack([self.choice(values, np.delete(folds, k)) for k in folds])
        gained, variance = np.zeros(len(values)), np.zeros(len(values))
        for k, covariance in enumerate(self.covariances):
            of_lead = np.diag(covariance) + covariance[0, 0] - 2 * covariance[0]
            gained += values[sets, k, chosen[k]] - values[:, k, 0]
            variance += np.maximum(of_lead, 0)[chosen[k]]
        return gained / np.sqrt(np.where(variance > 0, variance, np.inf)), chosen

    @cached_property
    def tested(self) -> tuple[list[Fold], list[Candidate], float]:
        """(folds of what is chosen without each against none, what that is, one-sided p).

        Choosing for a fold sees the others, and each of these is tested with what was chosen
        partly by this one: a candidate that is lucky everywhere is chosen everywhere. So the gain
        is compared with what the same procedure gains if no candidate differs from none: on
        bootstrapped scores that are moved to the same mean. Folds that aren't independent share
        luck too: those that share a text, or whose items train the heads of others.
        """
        gain, chosen = self.gains(self.values.T[None])
        null = (self.draws - self.draws.mean(axis=2, keepdims=True)).transpose(2, 1, 0)
        texts = [self.task.texts_of(evaluation.items) for evaluation in self.plan.evaluations]
        same = np.concatenate([np.unique(self.task.identities[numbers]) for numbers in texts])
        independent = not self.task.supervised and len(np.unique(same)) == len(same)
        chance, _ = self.gains(null if independent else overlapping(null))
        p = float(1 + (chance >= gain[0] - 1e-12).sum()) / (1 + len(chance))
        numbers = chosen[:, 0].tolist()
        system = [self.outcomes[number][k] for k, number in enumerate(numbers)]
        folds = self.bench.folds(self.plan, system, self.outcomes[0])
        return folds, [self.candidates[number] for number in numbers], p

    @cached_property
    def outer_plan(self) -> Plan:
        """How the choice is scored: on the part that was not used to choose, or on the folds."""
        if self.outside is None:
            return self.plan
        return self.bench.held_out(self.outside, self.inside)

    @cached_property
    def rival(self) -> tuple[Candidate, list[Fold]]:
        """The best repair on the folds, and its folds against none."""
        means = np.where(self.undefined, -np.inf, self.values.mean(axis=1))
        best = 1 + int(means[1:].argmax())
        folds = self.bench.folds(self.plan, self.outcomes[best], self.outcomes[0])
        return self.candidates[best], folds

    def summary(self) -> dict[str, Any]:
        """What was chosen, its score on the folds, and the p-value of the procedure."""
        score = percent(float(self.values[self.chosen].mean()))
        return {"choice": str(self.candidates[self.chosen]), "score": score, "p": self.tested[2]}

    def advice(self) -> Advice:
        """The recommendation, with what it rests on."""
        with self.bench.few_threads():
            return self._advice()

    def _advice(self) -> Advice:
        outer, _, p = self.tested
        recommended = self.chosen != 0 and p <= LEVEL and self.n_groups >= LEAST_GROUPS
        choice = self.candidates[self.chosen] if recommended else Candidate(NONE)
        scored = outer if recommended and self.outside is None else self._scored(choice)
        baseline = float(np.mean([fold.baseline.value for fold in scored]))
        score = float(np.mean([fold.system.value for fold in scored]))
        ends = interval(scored, seed=self.options.seed) if recommended else (0.0, 0.0)
        rival, rival_folds = self.rival
        level = choice.level if recommended else rival.level
        apart = self.outer_plan.fitted_on != TRAINING
        reason = self._why(baseline, score, ends) if recommended else self._why_not()
        return Advice(
            choice=choice,
            repair=self._fitted(choice, reason) if recommended else None,
            baseline=baseline,
            score=score,
            interval=ends,
            p=p,
            reason=reason,
            candidates=self._table(),
            task=self.task.name,
            metric=self.task.metric,
            n_items=sum(fold.n_items for fold in scored),
            scored_on=self.split.scored_on,
            fitted_on=self._fitted_on(choice),
            n_removed=self.outer_plan.n_removed + (0 if apart else self.split.n_removed),
            items_needed=items_needed(rival_folds, seed=self.options.seed),
            shift="" if self.bench.transductive else self.bench.shift_note(level, self.outer_plan),
            items=self.split.words,
            notes=self.bench.notes,
        )

    def _scored(self, choice: Candidate) -> list[Fold]:
        """The choice and none as `outer_plan` scores them."""
        plan = self.outer_plan
        none = self.bench.outcomes(Candidate(NONE), plan)
        self.bench.expect_defined(none, plan)
        system = none if choice.method == NONE else self.bench.outcomes(choice, plan)
        return self.bench.folds(plan, system, none)

    def _fitted(self, choice: Candidate, evidence: str) -> Repair:
        """The choice, fitted on everything that a shipped repair may be fitted on."""
        if self.outside is None:
            fits = self.bench.everything(self.inside)
        else:
            fits = self.outer_plan.evaluations[0].fits
        repair = fits.alone(choice)
        repair.origin_ = self.bench.origin(choice.level, fits.texts_for(choice), evidence)
        return repair

    def _fitted_on(self, choice: Candidate) -> str:
        """What the choice is fitted on where it is scored."""
        plan = self.outer_plan
        return plan.by_group_on or plan.fitted_on if choice.per_group else plan.fitted_on

    def _table(self) -> list[dict[str, Any]]:
        errors = (self.draws - self.draws[0]).mean(axis=1).std(axis=1)
        means = self.values.mean(axis=1)
        return [
            candidate.to_dict()
            | {
                "score": percent(mean),
                "difference": percent(mean - means[0]),
                "standard_error": percent(error),
            }
            for candidate, mean, error in zip(self.candidates, means, errors, strict=True)
        ]

    def _why(self, baseline: float, score: float, ends: tuple[float, float]) -> str:
        """Why the choice is recommended."""
        folds, chosen, p = self.tested
        choice = self.candidates[self.chosen]
        what = str(choice)
        names = sorted({str(candidate) for candidate in chosen})
        if self.outside is None and names != [what]:
            what = f"The choice without each fold ({', '.join(names)})"
        before, after, low, high = (100 * value for value in (baseline, score, *ends))
        return (
            f"{what}, fitted on {self._fitted_on(choice)}, takes {self.task.metric} of "
            f"{self.task.name!r} from {plain(before)} to {plain(after)} on {self.split.scored_on} "
            f"({signed(after - before)}, 95 % interval {signed(low)} to {signed(high)}). The "
            f"selection procedure was tested on unseen folds: {signed(100 * difference(folds))} on "
            f"{len(self.inside):,} items, one-sided p = {p:.4f}."
        )

    def _why_not(self) -> str:
        """Why no repair is recommended."""
        folds, _, p = self.tested
        items = f"{len(self.inside):,} items of {self.task.name!r}"
        if self.n_groups < LEAST_GROUPS:
            return (
                f"The {items} share so many sentences that they amount to {self.n_groups:.0f} "
                f"independent groups; at least {LEAST_GROUPS} are needed. Label items that have no "
                "sentence in common."
            )
        if self.chosen == 0:
            best = signed(100 * difference(self.rival[1]))
            return (
                f"On {items} no repair is better than none by more than one standard error of the "
                f"difference (the best of {len(self.candidates) - 1}: {best})."
            )
        return (
            f"{self.candidates[self.chosen]} scored best while choosing, but on held-out folds the "
            f"selection procedure gains {signed(100 * difference(folds))} on {items}, one-sided p "
            f"= {p:.3f}, which is not below {LEVEL}."
        )


def overlapping(null: Floats) -> Floats:
    """Null scores of shape (n_draws, n_folds, n_candidates), with correlated folds.

    Folds are correlated if the same words recur in their pairs, or if each trains a head on the
    items of the others: an item that pulls a head towards its label at another item is pulled the
    same way in return, so both are right by luck, or both wrong. All folds get a common part that
    gives them a correlation of 1/n_folds, the share of the items in a fold: the value of [1], and
    an upper bound. So the test is conservative: it recommends by chance less often than its level.

    References
    ----------
    .. [1] Nadeau and Bengio (2003), Inference for the Generalization Error, Machine Learning 52.
    """
    n_folds = null.shape[1]
    common = np.roll(null, 1, axis=0).sum(axis=1, keepdims=True) / np.sqrt(n_folds)
    shared: Floats = np.sqrt(1 - 1 / n_folds) * null + np.sqrt(1 / n_folds) * common
    return shared

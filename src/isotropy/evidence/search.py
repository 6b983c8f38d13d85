"""The search behind advise: choosing and testing on items kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.evidence.advice import Advice, percent, plain, signed
from isotropy.evidence.significance import Fold, difference, group_counts, interval, items_needed
from isotropy.evidence.spaces import (
    NONE,
    SENTENCE,
    Candidate,
    Fits,
    Integers,
    Space,
    encoder_of,
    fit_alone,
    parsed,
    searched,
)
from isotropy.evidence.split import disjoint, divided, effective_groups
from isotropy.evidence.trials import TRAINING, Bench, Plan, Progress, Watch, far, nobody
from isotropy.linalg import Floats
from isotropy.models.texts import Text
from isotropy.tasks import Outcome, Task

LEVEL = 0.025  # of the one-sided test that a recommendation must pass
N_DRAWS = 1999  # of the bootstrap that gives standard errors, and chance
LEAST_ITEMS = 20
GROUPS_A_FOLD = 10
LEAST_GROUPS = 20  # that items effectively hang together in, for a test to mean anything


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
    progress: Progress | None = None,
) -> Advice:
    """Whether a repair helps on a task, and which: chosen by cross-validation, tested apart.

    Inside, candidates are compared on folds and the simplest is taken that is within one standard
    error of the best, the error being that of their paired difference. Outside, that procedure is
    tested as a whole: what it chooses without a fold is compared with no repair on that fold. It
    recommends something only where this one-sided test holds at 2.5 %.

    Parameters
    ----------
    vectors : Encoder, KeyedVectors, array of shape (len(task.texts), n_features), or anything \
            with `encode`
    task : Task
        Its training part is what is chosen with, and its test part (dev where test has no labels)
        what the choice is scored on; an undivided task, and one whose parts share most of their
        sentences, is scored on the outer folds. `items` of the advice says what was used.
    fit_on : list of texts, or mapping of names to such, optional
        What repairs are fitted on. By default the corpus, or the text of the other items.
        With several, the first is used, and the advice says what each would have led to.
    budget : int
        Repairs tried at most, the simplest first.
    candidates : sequence, optional
        What to search, the simplest first, instead of the default: names of repairs, repairs or
        candidates, as of `compare`.
    n_folds, max_items, seed : int
        Folds, items of the training part used at most, and the seed of both.
    transductive : bool
        Fit on the text of all items, the scored ones included, as the papers did; the advice says
        so in `fitted_on` and in its reason.
    progress : callable, optional
        Called with a name, how many candidates are done, and how many there are.

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
            "task must be given, got None. Without labels use diagnose(vectors, texts)."
        )
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, got {type(task).__name__}.")
    checks.flag(transductive, "transductive")
    if transductive and fit_on is not None:
        raise InputError("fit_on does not go with transductive. Give one of them.")
    checks.integer(n_folds, "n_folds", 2)
    checks.integer(max_items, "max_items", LEAST_ITEMS)
    checks.integer(budget, "budget", 1)
    checks.integer(seed, "seed", 0)
    checks.function(progress, "progress")
    if candidates is not None:
        candidates = checks.listing(candidates, "candidates")
    searches: dict[str, Search] = {}
    for name, texts in _named(fit_on).items():
        known = next((search.bench.space for search in searches.values()), None)
        searches[name] = Search(
            vectors,
            task,
            texts,
            budget,
            candidates,
            n_folds,
            max_items,
            seed,
            progress,
            known,
            transductive,
        )
    first, *others = searches.values()
    if len(first.candidates) == 1:
        raise InputError("candidates must hold a repair, got none.")
    by_fit_text = {name: search.summary() for name, search in searches.items() if others}
    return first.advice(watch, by_fit_text)


def _named(fit_on: Any) -> dict[str, Any]:
    if isinstance(fit_on, Mapping):
        if not fit_on:
            raise InputError("fit_on must name at least one text, got none.")
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
        candidates: Sequence[Any] | None,
        n_folds: int,
        max_items: int,
        seed: int,
        progress: Progress | None = None,
        known: Space | None = None,
        transductive: bool = False,
    ) -> None:
        vectors = encoder_of(vectors, task.texts)
        for spec in candidates or ():
            parsed(spec, (SENTENCE,))  # refused before anything is encoded
        split = divided(task, max_items, seed)
        _expect_enough(split.inside, task)
        task, inside, self.outside = split.task(task), *split.within()
        self.bench = Bench(vectors, task, (), fit_on, known, transductive)
        task = self.bench.task  # which knows texts by their vectors too
        if self.outside is not None:
            inside = disjoint(task, inside, self.outside)
        self.split = split.without(len(split.inside) - len(inside))
        _expect_enough(inside, task)
        self.task, self.seed, self.inside_items = task, seed, inside
        levels, width = self.bench.space.levels, self.bench.space.pooled.shape[1]
        wanted = [parsed(c, levels) for c in candidates or searched(levels, width)]
        repairs = [c for c in wanted if c.method != NONE]
        self.candidates = self.bench.candidates = [Candidate(NONE), *repairs[:budget]]
        self.n_groups = effective_groups(task.groups[inside])
        most = max(2, len(np.unique(task.groups[inside])) // GROUPS_A_FOLD)
        self.plan = self.bench.across(inside, min(n_folds, most), seed)
        self.outcomes = self._tried(progress or nobody)
        self.values = np.array([[o.value for o in outcomes] for outcomes in self.outcomes])
        self.undefined = np.isnan(self.values).any(axis=1)
        self.draws = self._resampled()
        self.covariances = [np.atleast_2d(np.cov(part)) for part in self.draws.transpose(1, 0, 2)]
        self.chosen = int(self.choice(self.values.T[None], self._all)[0])

    def _tried(self, progress: Progress) -> list[list[Outcome]]:
        """What every candidate gets on each fold."""
        found = []
        for number, candidate in enumerate(self.candidates):
            progress(self.task.name, number, len(self.candidates))
            outcomes = self.bench.outcomes(candidate, self.plan)
            if candidate.method == NONE:
                self.bench.expect_defined(outcomes, self.plan)
            found.append(outcomes)
        progress(self.task.name, len(found), len(found))
        return found

    @property
    def _all(self) -> Integers:
        return np.arange(len(self.plan.trials))

    def _resampled(self) -> Floats:
        """Scores of (candidate, fold, draw), where all candidates have the same groups drawn.

        Draws in which a score is undefined are replaced by others. The deviations of a fold are
        widened by what a bootstrap of few or uneven groups understates them.
        """
        found = np.empty((len(self.candidates), len(self.plan.trials), N_DRAWS))
        for k, trial in enumerate(self.plan.trials):
            groups = self.task.groups[trial.items]
            numbers, places = np.unique(groups, return_inverse=True)
            random = np.random.default_rng([self.seed, k])
            weights = group_counts(random, N_DRAWS, len(numbers))[:, places]
            drawn = np.stack([outcomes[k].resampled(weights) for outcomes in self.outcomes])
            drawn[self.undefined] = 0.0
            whole = np.flatnonzero(np.isfinite(drawn).all(axis=0))
            if not len(whole):
                raise InputError(
                    f"{self.task.name!r} must have enough items in every fold, got "
                    f"{len(trial.items)}, of which no draw has a score. Give more items."
                )
            drawn = drawn[:, np.resize(whole, N_DRAWS)]
            middle = drawn.mean(axis=1, keepdims=True)
            n = effective_groups(groups)
            found[:, k] = middle + (drawn - middle) * np.sqrt(n / max(n - 1, 0.1))
        return found

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

    def summary(self) -> dict[str, Any]:
        """What was chosen, what it scored inside, and how sure choosing it is."""
        return {
            "choice": str(self.candidates[self.chosen]),
            "score": percent(self.inside(self.chosen)),
            "p": self.tested()[1],
        }

    def tested(self) -> tuple[list[Fold], float]:
        """What is chosen without each fold against none on that fold, and its one-sided p.

        Choosing for a fold sees the others, and each of these is tested with what was chosen
        partly by this one: a candidate that is lucky everywhere is chosen everywhere. So the gain
        is held against what the same procedure gains where no candidate differs from none: on the
        bootstrap's scores, each moved to the same mean. Where folds are not independent, they
        share luck too.
        """
        gain, chosen = self.gains(self.values.T[None])
        null = (self.draws - self.draws.mean(axis=2, keepdims=True)).transpose(2, 1, 0)
        chance, _ = self.gains(null if self._independent_folds else overlapping(null))
        p = float(1 + (chance >= gain[0] - 1e-12).sum()) / (1 + len(chance))
        folds = [
            Fold(self.outcomes[int(c)][k], self.outcomes[0][k], self.task.groups[trial.items])
            for k, (trial, c) in enumerate(zip(self.plan.trials, chosen[:, 0], strict=True))
        ]
        return folds, p

    @property
    def _independent_folds(self) -> bool:
        """Whether folds share no text, and no head is trained on the items of another."""
        texts = [self.task.texts_of(trial.items) for trial in self.plan.trials]
        same = np.concatenate([np.unique(self.task.identities[numbers]) for numbers in texts])
        return not self.task.supervised and len(np.unique(same)) == len(same)

    def advice(self, watch: Watch, by_fit_text: dict[str, dict[str, Any]]) -> Advice:
        outer, p = self.tested()
        wanted = self.candidates[self.chosen]
        recommended = self.chosen != 0 and p <= LEVEL and self.n_groups >= LEAST_GROUPS
        choice = wanted if recommended else Candidate(NONE)
        repair = None
        scored = outer if recommended and self.outside is None else self._outside(choice)
        if recommended:
            repair = fit_alone(choice, self._fitted_on_all().source(choice.level))
        system = [fold.system for fold in scored]
        baseline = [fold.baseline for fold in scored]
        ends = interval(scored, seed=self.seed) if recommended else (0.0, 0.0)
        rival, level = self._rival()
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
            scored_on=self.split.scored_on,
            fitted_on=self.plan.fitted_on,
            n_removed=self._n_removed,
            items_needed=items_needed(rival, seed=self.seed),
            seconds=watch.seconds,
            by_fit_text=by_fit_text,
            shift=""
            if self.bench.transductive
            else far(self.bench, choice.level if recommended else level, self._outer_plan),
            items=self.split.words,
            notes=self.bench.notes,
        )

    @property
    def _n_removed(self) -> int:
        """Texts that the repair which is scored was not fitted on because they are scored."""
        apart = self._outer_plan.fitted_on != TRAINING
        return self._outer_plan.n_removed + (0 if apart else self.split.n_removed)

    @cached_property
    def _outer_plan(self) -> Plan:
        """How the part that was not used to choose is scored, or the folds."""
        if self.outside is None:
            return self.plan
        return self.bench.held_out(self.outside, self.inside_items)

    def _outside(self, choice: Candidate) -> list[Fold]:
        """The choice and none on the part that was not used to choose, or on the folds."""
        plan = self._outer_plan
        none = self.bench.outcomes(Candidate(NONE), plan)
        self.bench.expect_defined(none, plan)
        system = none if choice.method == NONE else self.bench.outcomes(choice, plan)
        return self.bench.folds(plan, system, none)

    def _fitted_on_all(self) -> Fits:
        """Fits on everything that a shipped repair may be fitted on."""
        if self.outside is None:
            return self.bench.everything(self.inside_items)
        return self._outer_plan.trials[0].fits

    def _rival(self) -> tuple[list[Fold], str]:
        """The best repair inside against none, and its level."""
        means = np.where(self.undefined, -np.inf, self.values.mean(axis=1))
        best = 1 + int(means[1:].argmax())
        folds = self.bench.folds(self.plan, self.outcomes[best], self.outcomes[0])
        return folds, self.candidates[best].level

    def _what_is_scored(self, wanted: Candidate) -> str:
        """The choice, or what was chosen without each fold where these are scored and differ."""
        if self.outside is not None:
            return str(wanted)
        _, chosen = self.gains(self.values.T[None])
        names = {str(self.candidates[int(c)]) for c in chosen[:, 0]}
        if names == {str(wanted)}:
            return str(wanted)
        return f"What is chosen without each fold ({', '.join(sorted(names))})"

    def inside(self, candidate: int) -> float:
        """Mean score on the folds."""
        return float(self.values[candidate].mean())

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

    def _reason(
        self,
        recommended: bool,
        wanted: Candidate,
        outer: list[Fold],
        p: float,
        scored: list[Fold],
        ends: tuple[float, float],
    ) -> str:
        n, name = len(self.inside_items), self.task.name
        gain = 100 * difference(outer)
        if recommended:
            low, high = (100 * end for end in ends)
            before, after = (
                100 * float(np.mean([getattr(fold, side).value for fold in scored]))
                for side in ("baseline", "system")
            )
            return (
                f"{self._what_is_scored(wanted)}, fitted on {self.plan.fitted_on}, takes "
                f"{self.task.metric} of {name!r} from {plain(before)} to {plain(after)} on "
                f"{self.split.scored_on} ({signed(after - before)}, 95 % interval {signed(low)} to "
                f"{signed(high)}). The selection procedure was tested on unseen folds: "
                f"{signed(gain)} on {n:,} items, one-sided p = {p:.4f}."
            )
        if self.n_groups < LEAST_GROUPS:
            return (
                f"The {n:,} items of {name!r} share sentences so much that they amount to "
                f"{self.n_groups:.0f} independent groups; at least {LEAST_GROUPS} are needed. "
                "Label items that have no sentence in common."
            )
        if self.chosen == 0:
            best = 100 * difference(self._rival()[0])
            return (
                f"On {n:,} items of {name!r} no repair is better than none by more than one "
                f"standard error of the difference (the best of {len(self.candidates) - 1}: "
                f"{signed(best)})."
            )
        return (
            f"{wanted} scored best while choosing, but on held-out folds the selection procedure "
            f"gains {signed(gain)} on {n:,} items of {name!r}, one-sided p = {p:.3f}, which is not "
            f"below {LEVEL}."
        )


def overlapping(null: Floats) -> Floats:
    """Null scores of shape (n_draws, n_folds, n_candidates), with folds that are correlated.

    Folds are correlated if the same words recur in their pairs, or if each trains a head on the
    items of the others: an item that pulls a head towards its label at another item is pulled the
    same way in return, so both are right by luck, or both wrong. Every fold gets a common part for
    a correlation of 1/n_folds, the share of the items that a fold holds: the value of [1], and an
    upper bound. So the test is conservative: it recommends by chance less often than its level.

    References
    ----------
    .. [1] Nadeau and Bengio (2003), Inference for the Generalization Error, Machine Learning 52.
    """
    n_folds = null.shape[1]
    common = np.roll(null, 1, axis=0).sum(axis=1, keepdims=True) / np.sqrt(n_folds)
    shared: Floats = np.sqrt(1 - 1 / n_folds) * null + np.sqrt(1 / n_folds) * common
    return shared


def _expect_enough(inside: Integers, task: Task) -> None:
    if len(inside) < LEAST_ITEMS:
        raise InputError(
            f"{task.name!r} must have at least {LEAST_ITEMS} labelled items to choose "
            f"with, got {len(inside)}. Give more items."
        )

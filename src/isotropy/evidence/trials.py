"""One task, many candidates: what is fitted on which text, and what each then gets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError
from isotropy.evidence.significance import Fold
from isotropy.evidence.spaces import Candidate, Fits, Integers, Space, encoder_of, space
from isotropy.models.keyed import KeyedVectors
from isotropy.models.models import Rows
from isotropy.models.texts import Text, distinct, expect_texts
from isotropy.repairs import Center
from isotropy.repairs.shift import Shift
from isotropy.sources.arrays import PickedRows
from isotropy.tasks import Outcome, Task
from isotropy.tasks.base import identity

TRANSDUCTIVE, ELSEWHERE, TRAINING, FOLDS, CORPUS, VOCABULARY = (
    "all text, the evaluated included (transductive)",
    "other text",
    "the training part",
    "the other folds",
    "the corpus",
    "the other vectors",
)

Progress = Callable[[str, int, int], object]  # with a name, how many are done, and of how many


@dataclass(frozen=True)
class Trial:
    """Items that are scored with repairs fitted on certain rows, and a head trained on `train`."""

    items: Integers
    train: Integers
    fits: Fits


@dataclass(frozen=True)
class Plan:
    """How a task is evaluated: one trial, or one for each fold."""

    trials: list[Trial]
    fitted_on: str
    n_removed: int = 0
    n_folds: int = 1  # wanted; few items make fewer trials


class Bench:
    """A task with the vectors of its texts, on which candidates are tried.

    Parameters
    ----------
    vectors : Encoder, array, or anything with `encode`
    task : Task
    candidates : sequence of Candidate
        All that will be tried.
    fit_on : sequence of texts, optional
        What repairs are fitted on.
    known : Space, optional
        That of the task's texts, where it was made before.
    """

    def __init__(
        self,
        vectors: Any,
        task: Task,
        candidates: Sequence[Candidate],
        fit_on: Sequence[Text] | None = None,
        known: Space | None = None,
        transductive: bool = False,
    ) -> None:
        self.transductive = transductive
        self.vectors = encoder_of(vectors, task.texts)
        self.candidates = candidates
        self.fit_on = None if fit_on is None else _distinct(fit_on)
        self.space = known or space(self.vectors, task.texts)
        self.notes: list[str] = list(getattr(self.vectors, "notes", ()))
        self.task = task.joined(self.space.pooled)

    # What repairs are fitted on

    def evaluated(self, items: Integers) -> Plan:
        """Fitted on the evaluated text itself, as the papers do."""
        if isinstance(self.vectors, KeyedVectors):
            fits = self._fits(np.arange(self.vectors.n_samples))
            return Plan([Trial(items, self._none(), fits)], TRANSDUCTIVE)
        texts = np.concatenate([self.task.members[items].ravel(), self.task.background])
        return Plan([Trial(items, self._none(), self._fits_of(texts))], TRANSDUCTIVE)

    def held_out(self, items: Integers, known: Integers) -> Plan:
        """Fitted on text that is not evaluated: `fit_on`, the corpus, or that of known items."""
        apart = self.apart(items)
        if apart is not None:
            fits, how, n_removed = apart
            return Plan([Trial(items, known, fits)], how, n_removed)
        return self._by_known(items, known)

    def _by_known(self, items: Integers, known: Integers) -> Plan:
        """Fitted on the text of known items, without the evaluated sentences."""
        texts = self.task.members[known].ravel()
        clean = self._without(texts, items)
        if not len(clean):
            raise InputError(
                f"{self.task.name!r} must have text to fit on that is not evaluated. Give fit_on."
            )
        removed = np.unique(texts).size - np.unique(clean).size
        return Plan([Trial(items, known, self._fits_of(clean))], TRAINING, removed)

    def across(self, items: Integers, n_folds: int, seed: int) -> Plan:
        """Folds by group: each is evaluated by what is fitted on the others."""
        folds = grouped_folds(self.task.groups[items], n_folds, seed)
        n_made = int(folds.max()) + 1
        if n_made < 2:
            raise InputError(
                f"{self.task.name!r} must have items in at least 2 groups that "
                f"share no sentence and no vector, got {n_made}. Give more items."
            )
        parts = [(items[folds == fold], items[folds != fold]) for fold in range(n_made)]
        apart = self.apart(items)
        if apart is not None:  # one fit serves all folds
            fits, how, n_removed = apart
            return Plan([Trial(*part, fits) for part in parts], how, n_removed, n_folds)
        plans = [self._by_known(*part) for part in parts]
        removed = max(plan.n_removed for plan in plans)
        return Plan([plan.trials[0] for plan in plans], FOLDS, removed, n_folds)

    def apart(self, items: Integers) -> tuple[Fits, str, int] | None:
        """What is fitted on text or vectors of no item, what that is, and how much was removed.

        None where there is nothing but the text of other items.
        """
        if self.transductive:
            return self.evaluated(np.arange(self.task.n_items)).trials[0].fits, TRANSDUCTIVE, 0
        if self.fit_on is not None:
            fits, n_removed = self._fits_elsewhere(items)
            return fits, ELSEWHERE, n_removed
        if len(self.task.background):
            documents = self._without(self.task.background, np.arange(self.task.n_items))
            n_removed = len(self.task.background) - len(documents)
            if not len(documents):
                raise InputError(
                    f"{self.task.name!r} must have a document that is no query, got "
                    "none. Give fit_on."
                )
            return self._fits_of(documents), CORPUS, n_removed
        if isinstance(self.vectors, KeyedVectors):
            others = self._other_rows(items)
            if others.sum() > (~others).sum():  # a few rows more than the items' own tell little
                fits = self._fits(np.flatnonzero(others))
                return fits, VOCABULARY, int((~others).sum())
        return None

    def everything(self, items: Integers) -> Fits:
        """Fitted on all there is: `fit_on`, the corpus, all vectors, or the text of the items."""
        if self.fit_on is not None:
            elsewhere = self._elsewhere
            return Fits(lambda level: elsewhere.source(level, _upto(elsewhere)), self.candidates)
        if len(self.task.background):
            return self._fits_of(self.task.background)
        return self.evaluated(items).trials[0].fits

    # What candidates get

    def outcome(self, candidate: Candidate, trial: Trial, seed: int = 0) -> Outcome:
        """What a candidate gets on the items of a trial."""
        texts = self.task.texts_of(trial.items)
        texts = np.union1d(texts, getattr(self.task, "documents", self.task.background))
        train = trial.train if self.task.supervised else None
        if train is not None:
            texts = np.union1d(texts, self.task.texts_of(train))
        repair = trial.fits.fitted(candidate, seed)
        rows = self.space.repaired(repair, candidate.level, texts)
        return self.task.score(rows, trial.items, train)

    def outcomes(self, candidate: Candidate, plan: Plan, seeds: int = 1) -> list[Outcome]:
        """One outcome a trial, and a seed where the candidate depends on it."""
        runs = range(seeds if candidate.seeded else 1)
        return [self.outcome(candidate, trial, seed) for seed in runs for trial in plan.trials]

    def folds(self, plan: Plan, system: Sequence[Outcome], none: Sequence[Outcome]) -> list[Fold]:
        """The two systems side by side; `none` is repeated for every seed of the system."""
        n = len(plan.trials)
        return [
            Fold(outcome, none[i % n], self.task.groups[plan.trials[i % n].items])
            for i, outcome in enumerate(system)
        ]

    def rows_before_and_after(
        self, candidate: Candidate, trial: Trial, n_texts: int = 2000, seed: int = 0
    ) -> tuple[Rows, Rows]:
        """Rows of texts, at most so many, without the repair and with it."""
        texts = self.task.texts_of(trial.items)
        if len(texts) > n_texts:
            texts = np.sort(np.random.default_rng(seed).choice(texts, n_texts, replace=False))
        repair = trial.fits.fitted(candidate)
        after = self.space.repaired(repair, candidate.level, texts)
        return self.space.pooled[texts], after[texts]

    def expect_defined(self, outcomes: Sequence[Outcome], plan: Plan) -> None:
        """Raise unless every score without repair is one."""
        undefined = [outcome.n_items for outcome in outcomes if math.isnan(outcome.value)]
        if undefined and min(undefined) < 2:
            n_items = sum(len(trial.items) for trial in plan.trials)
            raise InputError(
                f"{self.task.name!r} must have at least {2 * plan.n_folds} items "
                f"(two in each of {plan.n_folds} folds), got {n_items}. Give more items."
            )
        if undefined:
            raise InputError(
                f"the scores of {self.task.name!r} must be defined in every fold, "
                "got labels or vectors that are constant. Give more items."
            )

    def shift(self, level: str, trial: Trial) -> Shift:
        """How far the rows of a trial's texts are from those that its repairs are fitted on."""
        texts = self.task.texts_of(trial.items)
        center = Center().fit_statistic(trial.fits.moments(level))
        return center.shift(self.space.source(level, texts))

    # Rows

    def _none(self) -> Integers:
        return np.empty(0, dtype=np.int64)

    def _fits(self, rows: Integers) -> Fits:
        """On some of the keyed vectors."""
        checks.finite(self.vectors.vectors)
        return Fits(lambda level: PickedRows(self.vectors.vectors, rows), self.candidates)

    def _fits_of(self, texts: Integers) -> Fits:
        return Fits(lambda level: self.space.source(level, texts), self.candidates)

    def _fits_elsewhere(self, items: Integers) -> tuple[Fits, int]:
        assert self.fit_on is not None
        evaluated = {identity(self.task.texts[i]) for i in self.task.texts_of(items)}
        kept = [i for i, text in enumerate(self.fit_on) if identity(text) not in evaluated]
        if not kept:
            raise InputError(
                "fit_on must have text that is not evaluated, got none. Give other text."
            )
        texts, elsewhere = np.array(kept), self._elsewhere
        fits = Fits(lambda level: elsewhere.source(level, texts), self.candidates)
        return fits, len(self.fit_on) - len(kept)

    @cached_property
    def _elsewhere(self) -> Space:
        """The space of `fit_on`."""
        assert self.fit_on is not None
        return space(self.vectors, self.fit_on)

    def _other_rows(self, items: Integers) -> NDArray[np.bool_]:
        """Which rows of the keyed vectors are none of the items' texts, nor equal to one's row."""
        rows, words = self.vectors.vectors, self.vectors.words
        used = [self.task.texts[i] for i in self.task.texts_of(items)]
        equal, names = {rows[words[text]].tobytes() for text in used}, set(map(identity, used))
        others = np.array([row.tobytes() not in equal for row in rows])
        others[[row for text, row in words.items() if identity(text) in names]] = False
        return others

    def _without(self, texts: Integers, items: Integers) -> Integers:
        """Those of the texts that are none of the items'."""
        same = self.task.identities
        return texts[~np.isin(same[texts], same[self.task.texts_of(items)])]


def far(bench: Bench, level: str, plan: Plan) -> str:
    """In words, that what is evaluated differs from what repairs are fitted on; "" where not."""
    first, *others = plan.trials
    together = all(trial.fits is first.fits for trial in others)
    items = np.concatenate([t.items for t in plan.trials]) if together else first.items
    found = bench.shift(level, Trial(items, first.train, first.fits))
    if not found.large:
        return ""
    n_texts = len(bench.task.texts_of(items))
    which = f"{n_texts:,} evaluated texts" + ("" if together else " of one fold")
    return (
        f"The {which} differ from the text that repairs were fitted on (Frechet distance of their "
        f"{level} vectors: {found.frechet:.2g}; by chance at most {found.chance:.2g}). The scores "
        "above include this. A repair fitted on text more like them may do better: give such text "
        "with fit_on (--fit-on)."
    )


def _distinct(texts: Sequence[Text]) -> list[Text]:
    if isinstance(texts, str):
        raise InputError("fit_on must be a list of texts, got a string.")
    found, _ = distinct(expect_texts(texts, "fit_on"))
    if not found:
        raise InputError("fit_on must have at least one text, got none.")
    return found


def _upto(found: Space) -> Integers:
    return np.arange(found.tokens.n_texts)


def grouped_folds(groups: Integers, n_folds: int, seed: int) -> Integers:
    """The fold of each item: whole groups, dealt by size and back again, as many to each fold."""
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    n_made = min(n_folds, len(sizes))
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    there_and_back = np.concatenate([np.arange(n_made), np.arange(n_made)[::-1]])
    of_group = np.empty(len(sizes), dtype=np.int64)
    of_group[order] = np.resize(there_and_back, len(sizes))
    return of_group[places]


def sampled(items: Integers, n: int, seed: int = 0) -> Integers:
    """At most n of the items, by a seed, in their order."""
    if len(items) <= n:
        return items
    return np.sort(np.random.default_rng(seed).choice(items, n, replace=False))


def excluded(n_texts: int) -> str:
    """How many evaluated texts repairs are not fitted on, in words."""
    texts = "1 evaluated text was" if n_texts == 1 else f"{n_texts:,} evaluated texts were"
    return f"{texts} excluded from fitting."


def nobody(name: str, n_done: int, n_all: int) -> None:
    """Tells nobody."""


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

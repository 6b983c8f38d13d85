"""One task, many candidates: what is fitted on which text, and what each then gets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError
from isotropy.evidence.candidates import Candidate, Fits
from isotropy.evidence.significance import Fold
from isotropy.evidence.spaces import Integers, Space, space
from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.models import Rows
from isotropy.sources.texts import Span, Text
from isotropy.tasks import Outcome, Task

TRANSDUCTIVE, ELSEWHERE, TRAINING, FOLDS, CORPUS, VOCABULARY = (
    "the evaluated text itself (transductive)",
    "other text",
    "the training part",
    "the other folds",
    "the corpus",
    "the other vectors",
)


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
    caller : str
        Name that error messages begin with.
    """

    def __init__(
        self,
        vectors: Any,
        task: Task,
        candidates: Sequence[Candidate],
        fit_on: Sequence[Text] | None = None,
        caller: str = "compare",
    ) -> None:
        self.vectors, self.task, self.caller = vectors, task, caller
        self.space = space(vectors, task.texts, caller)
        self.candidates = candidates
        self.fit_on = None if fit_on is None else list(dict.fromkeys(fit_on))
        self._elsewhere: Space | None = None

    # What repairs are fitted on

    def evaluated(self, items: Integers) -> Plan:
        """Fitted on the evaluated text itself, as the papers do."""
        if isinstance(self.vectors, KeyedVectors):
            fits = self._fits(lambda: self.vectors.vectors)
            return Plan([Trial(items, self._none(), fits)], TRANSDUCTIVE)
        texts = np.concatenate([self.task.members[items].ravel(), self.task.background])
        return Plan([Trial(items, self._none(), self._fits_of(texts))], TRANSDUCTIVE)

    def held_out(self, items: Integers, known: Integers) -> Plan:
        """Fitted on text that is not evaluated: `fit_on`, the corpus, or that of known items."""
        if self.fit_on is not None:
            fits, n_removed = self._fits_elsewhere(items)
            return Plan([Trial(items, known, fits)], ELSEWHERE, n_removed)
        if len(self.task.background):
            return Plan([Trial(items, known, self._fits_of(self.task.background))], CORPUS)
        if isinstance(self.vectors, KeyedVectors):
            others = self._other_rows(items)
            if others.any():
                fits = self._fits(lambda: self.vectors.vectors[others])
                return Plan([Trial(items, known, fits)], VOCABULARY)
        texts = self.task.members[known].ravel()
        clean = texts[~np.isin(self._sentences[texts], self._sentences[self.task.texts_of(items)])]
        if not len(clean):
            raise InputError(
                f"{self.caller}: {self.task.name!r} must have text to fit on that is not "
                "evaluated. Give fit_on."
            )
        removed = np.unique(texts).size - np.unique(clean).size
        return Plan([Trial(items, known, self._fits_of(clean))], TRAINING, removed)

    def across(self, items: Integers, n_folds: int, seed: int) -> Plan:
        """Folds by group: each is evaluated by what is fitted on the others."""
        folds = grouped_folds(self.task.groups[items], n_folds, seed)
        n_made = int(folds.max()) + 1
        if n_made < 2:
            raise InputError(
                f"{self.caller}: {self.task.name!r} must have items in at least 2 groups that "
                f"share no sentence, got {n_made}. Give more items."
            )
        plans = [
            self.held_out(items[folds == fold], items[folds != fold]) for fold in range(n_made)
        ]
        how = plans[0].fitted_on
        return Plan(
            [plan.trials[0] for plan in plans],
            FOLDS if how == TRAINING else how,
            max(plan.n_removed for plan in plans),
        )

    # What candidates get

    def outcome(self, candidate: Candidate, trial: Trial, seed: int = 0) -> Outcome:
        """What a candidate gets on the items of a trial."""
        texts = self.task.texts_of(trial.items)
        texts = np.union1d(texts, self.task.background)
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

    def fit_rows(self, level: str, plan: Plan) -> Rows:
        """What the repairs of the first trial are fitted on."""
        return plan.trials[0].fits._at(level)

    # Rows

    def _none(self) -> Integers:
        return np.empty(0, dtype=np.int64)

    def _fits(self, rows: Any) -> Fits:
        return Fits(lambda level: rows(), self.candidates)

    def _fits_of(self, texts: Integers) -> Fits:
        return Fits(lambda level: self.space.rows(level, texts), self.candidates)

    def _fits_elsewhere(self, items: Integers) -> tuple[Fits, int]:
        assert self.fit_on is not None
        if self._elsewhere is None:
            self._elsewhere = space(self.vectors, self.fit_on, self.caller)
        elsewhere = self._elsewhere
        evaluated = {_sentence(self.task.texts[i]) for i in self.task.texts_of(items)}
        kept = [i for i, text in enumerate(self.fit_on) if _sentence(text) not in evaluated]
        if not kept:
            raise InputError(
                f"{self.caller}: fit_on must have text that is not evaluated, got none."
            )
        texts = np.array(kept)
        fits = Fits(lambda level: elsewhere.rows(level, texts), self.candidates)
        return fits, len(self.fit_on) - len(kept)

    def _other_rows(self, items: Integers) -> NDArray[np.bool_]:
        """Which rows of the keyed vectors are of none of the items' texts."""
        words = self.vectors.words
        others = np.ones(len(self.vectors.vectors), dtype=bool)
        others[[words[self.task.texts[i]] for i in self.task.texts_of(items)]] = False
        return others

    @property
    def _sentences(self) -> Integers:
        numbers: dict[str, int] = {}
        found = [numbers.setdefault(_sentence(t), len(numbers)) for t in self.task.texts]
        return np.array(found)


def _sentence(text: Text) -> str:
    return text.text if isinstance(text, Span) else text


def grouped_folds(groups: Integers, n_folds: int, seed: int) -> Integers:
    """The fold of each item: whole groups, the largest first, each to the smallest fold."""
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    totals = np.zeros(min(n_folds, len(sizes)), dtype=np.int64)
    of_group = np.empty(len(sizes), dtype=np.int64)
    for group in order:
        smallest = int(totals.argmin())
        of_group[group] = smallest
        totals[smallest] += sizes[group]
    return of_group[places]


def sampled(items: Integers, n: int, seed: int = 0) -> Integers:
    """At most n of the items, by a seed, in their order."""
    if len(items) <= n:
        return items
    return np.sort(np.random.default_rng(seed).choice(items, n, replace=False))


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

"""One task, many candidates: which text repairs are fitted on, and how each candidate scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import ENCODE_AGAIN, InputError, brief
from isotropy.evidence.significance import Fold
from isotropy.evidence.spaces import Candidate, Fits, Integers, Space, as_encoder, space_of
from isotropy.models import (
    Encoder,
    Float32Array,
    KeyedVectors,
    Text,
    distinct,
    expect_texts,
    fingerprint,
)
from isotropy.repairs import Center, Origin
from isotropy.repairs.per_group import LEAST_ROWS, Label, Labels, as_labels
from isotropy.repairs.per_group import distinct as distinct_labels
from isotropy.sources import PickedRows, listed
from isotropy.tasks import Outcome, Retrieval, Task, identity
from isotropy.threads import over_threads

TRANSDUCTIVE, ELSEWHERE, TRAINING, FOLDS, CORPUS, VOCABULARY = (
    "all text, including the evaluated text (transductive)",
    "other text",
    "the training part",
    "the other folds",
    "the corpus",
    "the other vectors",
)
NO_ITEMS: Integers = np.empty(0, dtype=np.int64)

OnProgress = Callable[[str, int, int], object]  # called with a name, how many are done, of how many


def no_progress(name: str, n_done: int, n_all: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Evaluation:
    """Items to score, items to train a head on, and the repairs fitted for them."""

    items: Integers
    train: Integers
    fits: Fits


@dataclass(frozen=True)
class Plan:
    """How a task is evaluated: in one evaluation, or in one for each fold."""

    evaluations: list[Evaluation]
    fitted_on: str
    n_removed: int = 0
    n_folds: int = 1  # as asked for; with few items there are fewer evaluations
    by_group_on: str = ""  # what candidates per group are fitted on, if that is something else


@dataclass(frozen=True, eq=False)
class Bench:
    """A task with the vectors of its texts, on which candidates are scored."""

    encoder: Any  # Encoder, KeyedVectors, or anything with `encode`
    task: Task  # which knows texts by their vectors too: see `Task.joined`
    space: Space  # of the task's texts
    candidates: Sequence[Candidate]  # all that will be scored
    fit_on: Sequence[Text] | None = None  # distinct texts to fit repairs on
    transductive: bool = False  # fit on all text of the task, including the evaluated text
    text_groups: Mapping[Text, Label] = field(default_factory=dict)  # for candidates per group

    @property
    def notes(self) -> list[str]:
        """Remarks about the vectors."""
        return list(getattr(self.encoder, "notes", ()))

    def few_threads(self) -> AbstractContextManager[None]:
        """One BLAS thread, unless rows are wide: its others would wait, and take cores to do so."""
        return linalg.threads_for(self.space.pooled.shape[1])

    # What repairs are fitted on

    def evaluated(self, items: Integers) -> Plan:
        """Fit on the evaluated text itself, as in the papers."""
        if isinstance(self.encoder, KeyedVectors):
            fits = self._fits_of_rows(np.arange(self.encoder.n_samples))
        else:
            texts = [self.task.members[items].ravel(), self.task.background]
            fits = self._fits_of(np.concatenate(texts))
        fits = self._filled(fits, NO_ITEMS, items)
        return Plan([Evaluation(items, NO_ITEMS, fits)], TRANSDUCTIVE)

    def held_out(self, items: Integers, known: Integers) -> Plan:
        """Fit on text that is not evaluated: `fit_on`, the corpus, or the text of known items."""
        apart = self.apart(items)
        if apart is None:
            return self._by_known(items, known)
        fits, how, n_removed = apart
        by_group_on = self._by_group_on(fits, how, TRAINING)
        fits = self._filled(fits, items, known)
        plan = [Evaluation(items, known, fits)]
        return Plan(plan, how, n_removed, by_group_on=by_group_on)

    def _by_known(self, items: Integers, known: Integers) -> Plan:
        """Fit on the text of known items, without the evaluated sentences."""
        texts = self.task.members[known].ravel()
        clean = self._without(texts, items)
        if not len(clean):
            raise InputError(
                f"{self.task.name!r} must have text to fit on that is not evaluated, got none. "
                "Give fit_on."
            )
        removed = np.unique(texts).size - np.unique(clean).size
        fits = self._filled(self._fits_of(clean), items, known)
        return Plan([Evaluation(items, known, fits)], TRAINING, removed)

    def across(self, items: Integers, n_folds: int, seed: int) -> Plan:
        """Folds of whole groups, each evaluated with what is fitted on the others."""
        folds = grouped_folds(self.task.groups[items], n_folds, seed, self._strata(items))
        n_made = int(folds.max()) + 1
        if n_made < 2:
            raise InputError(
                f"{self.task.name!r} must have items in at least 2 groups that share no sentence "
                f"and no vector, got {n_made}. Give more items."
            )
        parts = [(items[folds == fold], items[folds != fold]) for fold in range(n_made)]
        apart = self.apart(items)
        if apart is not None:  # one fit serves all folds
            fits, how, n_removed = apart
            evaluations = [Evaluation(*part, self._filled(fits, *part)) for part in parts]
            by_group_on = self._by_group_on(fits, how, FOLDS)
            return Plan(evaluations, how, n_removed, n_folds, by_group_on)
        plans = [self._by_known(*part) for part in parts]
        removed = max(plan.n_removed for plan in plans)
        return Plan([plan.evaluations[0] for plan in plans], FOLDS, removed, n_folds)

    def apart(self, items: Integers) -> tuple[Fits, str, int] | None:
        """(fits on text or vectors of no item, what these are, how many were removed from them).

        None if there is nothing but the text of other items.
        """
        if self.transductive:
            return self.evaluated(np.arange(self.task.n_items)).evaluations[0].fits, TRANSDUCTIVE, 0
        if self.fit_on is not None:
            evaluated = {identity(self.task.texts[i]) for i in self.task.texts_of(items)}
            kept = [i for i, text in enumerate(self.fit_on) if identity(text) not in evaluated]
            if not kept:
                raise InputError(
                    "fit_on must have text that is not evaluated, got none. Give other text."
                )
            return self._fits_elsewhere(np.array(kept)), ELSEWHERE, len(self.fit_on) - len(kept)
        if len(self.task.background):
            documents = self._without(self.task.background, np.arange(self.task.n_items))
            n_removed = len(self.task.background) - len(documents)
            if not len(documents):
                raise InputError(
                    f"{self.task.name!r} must have a document that is not a query, got none. Give "
                    "fit_on."
                )
            return self._fits_of(documents), CORPUS, n_removed
        if isinstance(self.encoder, KeyedVectors):
            others = self._other_rows(items)
            n_used = int((~others).sum())
            if others.sum() > n_used:  # hardly more rows than the items' own say little
                return self._fits_of_rows(np.flatnonzero(others)), VOCABULARY, n_used
        return None

    def everything(self, items: Integers) -> Fits:
        """Fit on all there is: `fit_on`, the corpus, all vectors, or the text of the items."""
        if self.fit_on is not None:
            fits = self._fits_elsewhere(np.arange(len(self.fit_on)))
        elif len(self.task.background):
            fits = self._fits_of(self.task.background)
        else:
            fits = self.evaluated(items).evaluations[0].fits
        return self._filled(fits, NO_ITEMS, items)

    def _filled(self, fits: Fits, items: Integers, known: Integers) -> Fits:
        """The fits, with the text of known items for groups of which they have too little."""
        if missing := self.missing(fits):
            texts = self.task.members[known].ravel()
            parts = self._fits_of(self._without(texts, items)).by_group
            fits = fits.filled({label: parts[label] for label in missing if label in parts})
        for label in self._labels:
            if (n_texts := n_of_group(fits, label)) < LEAST_ROWS:
                raise InputError(
                    f"group {brief(label)} must have at least {LEAST_ROWS} texts to fit on that "
                    f"are not evaluated, got {n_texts}. Leave it out, or join it with another."
                )
        return fits

    def _by_group_on(self, fits: Fits, how: str, known: str) -> str:
        """What groups are fitted on if `fits`, on `how`, are filled with known items."""
        missing = self.missing(fits)
        if not missing:
            return ""
        some = len(missing) < len(self._labels)
        return f"{how} ({listed(missing, 5)}: {known})" if some else known

    def missing(self, fits: Fits) -> list[Label]:
        """The groups of which fits have too little text."""
        return [label for label in self._labels if n_of_group(fits, label) < LEAST_ROWS]

    @cached_property
    def _labels(self) -> list[Label]:
        """The groups of the task's texts."""
        return distinct_labels(self._groups_of(np.arange(len(self.task.texts))))

    def _groups_of(self, texts: Integers) -> Labels:
        """The group of each of the task's texts; nothing if there are no groups."""
        if not self.text_groups:
            return as_labels([])
        return as_labels([self.text_groups[self.task.texts[i]] for i in texts])

    def _strata(self, items: Integers) -> NDArray[Any] | None:
        """What folds should have equal shares of: subsets, and groups of texts."""
        subsets = self.task.subsets
        if not self.text_groups:
            return None if subsets is None else subsets[items]
        groups = self._groups_of(self.task.members[items, 0])
        if subsets is None:
            return groups.astype(str)
        return np.array([f"{a} {b}" for a, b in zip(subsets[items], groups, strict=True)])

    def origin(self, level: str, texts: Sequence[Text], evidence: str) -> Origin:
        """What a repair or codec records: the vectors and texts it was fitted on, and why."""
        made = {}
        if isinstance(self.encoder, Encoder):
            made = self.encoder.origin(level)
        elif isinstance(self.encoder, KeyedVectors):
            made = self.encoder.origin()
        made = made | {"fingerprint": fingerprint(texts), "evidence": evidence}
        return Origin.from_dict(made)

    # How candidates score

    def outcomes(self, candidate: Candidate, plan: Plan, seeds: int = 1) -> list[Outcome]:
        """One outcome per evaluation, and per seed if the candidate depends on it.

        Evaluations with fits of their own are spread over threads, once the passes over their rows
        are made, which use all threads.
        """
        found: list[Outcome] = []
        groups = groupby(plan.evaluations, key=lambda evaluation: id(evaluation.fits))
        alike = [list(group) for _, group in groups]
        for seed in range(seeds if candidate.seeded else 1):
            with self.few_threads():
                for evaluations in alike:
                    evaluations[0].fits.gather(candidate, seed)
                parts = over_threads(partial(self._with_same_fits, candidate, seed), alike)
            found += [outcome for part in parts for outcome in part]
        return found

    def _with_same_fits(
        self, candidate: Candidate, seed: int, evaluations: list[Evaluation]
    ) -> list[Outcome]:
        """The outcomes of evaluations with the same fits, whose texts are repaired once."""
        parts = [
            (part.items, part.train if self._learns(candidate, part) else None)
            for part in evaluations
        ]
        used = np.concatenate([part for pair in parts for part in pair if part is not None])
        documents = getattr(self.task, "documents", self.task.background)
        texts = np.union1d(self.task.texts_of(used), documents)
        repair = evaluations[0].fits.fitted(candidate, seed)
        rows = self.space.repaired(repair, candidate.level, texts, self._groups_of(texts))
        scorer = {"scorer": candidate.scorer} if candidate.scorer else {}
        return [self.task.score(rows, *part, **scorer) for part in parts]

    def _learns(self, candidate: Candidate, evaluation: Evaluation) -> bool:
        """Whether the items to train on are used."""
        return self.task.supervised or bool(candidate.scorer and len(evaluation.train))

    def compared_with(self, candidate: Candidate, plan: Plan) -> str:
        """Which texts the candidate's scorer compares documents with, in words."""
        if candidate.scorer is None or not candidate.scorer.compares:
            return ""
        assert isinstance(self.task, Retrieval)
        first = plan.evaluations[0]
        return self.task.compared_with(first.items, first.train)[1]

    def folds(self, plan: Plan, system: Sequence[Outcome], none: Sequence[Outcome]) -> list[Fold]:
        """The two systems side by side; `none` is repeated for every seed of the system."""
        n = len(plan.evaluations)
        return [
            Fold(outcome, none[i % n], self.task.groups[plan.evaluations[i % n].items])
            for i, outcome in enumerate(system)
        ]

    def rows_before_and_after(
        self, candidate: Candidate, evaluation: Evaluation, n_texts: int = 2000, seed: int = 0
    ) -> tuple[Float32Array, Float32Array]:
        """Rows of at most n_texts texts, without the repair and with it."""
        texts = subsample(self.task.texts_of(evaluation.items), n_texts, seed)
        repair = evaluation.fits.fitted(candidate)
        after = self.space.repaired(repair, candidate.level, texts, self._groups_of(texts))
        return self.space.pooled[texts], after[texts]

    def expect_defined(self, outcomes: Sequence[Outcome], plan: Plan) -> None:
        """Raise unless every score without repair is defined."""
        undefined = [outcome.n_items for outcome in outcomes if math.isnan(outcome.value)]
        if undefined and min(undefined) < 2:
            n_items = sum(len(evaluation.items) for evaluation in plan.evaluations)
            raise InputError(
                f"{self.task.name!r} must have at least {2 * plan.n_folds} items "
                f"(two in each of {plan.n_folds} folds), got {n_items}. Give more items."
            )
        if undefined:
            raise InputError(
                f"the scores of {self.task.name!r} must be defined in every fold, got constant "
                "labels or vectors. Give more items."
            )

    def shift_note(self, level: str, plan: Plan) -> str:
        """A note if the evaluated texts differ from the text that repairs are fitted on, or ""."""
        first, *others = plan.evaluations
        together = all(evaluation.fits.texts is first.fits.texts for evaluation in others)
        items = np.concatenate([t.items for t in plan.evaluations]) if together else first.items
        texts = self.task.texts_of(items)
        center = Center().fit_statistic(first.fits.moments(level))
        found = center.shift(self.space.source(level, texts))
        if not found.large:
            return ""
        which = f"{len(texts):,} evaluated texts" + ("" if together else " of one fold")
        return (
            f"The {which} differ from the text that repairs were fitted on (Frechet distance of "
            f"their {level} vectors: {found.frechet:.2g}; by chance at most {found.chance:.2g}). "
            "The scores above include this. A repair fitted on more similar text may do better: "
            "give such text with fit_on (--fit-on)."
        )

    # Rows

    def _fits_of_rows(self, rows: Integers) -> Fits:
        """Fits on some of the keyed vectors."""
        checks.finite(self.encoder.vectors, advice=ENCODE_AGAIN)
        picked = set(rows.tolist())
        used = [text for text, row in self.encoder.words.items() if row in picked]
        return Fits(lambda level: PickedRows(self.encoder.vectors, rows), self.candidates, used)

    def _fits_of(self, texts: Integers) -> Fits:
        return self._fits(self.space, self.task.texts, texts)

    def _fits_elsewhere(self, texts: Integers) -> Fits:
        """Fits on some of the texts in `fit_on`."""
        assert self.fit_on is not None
        return self._fits(self._elsewhere, self.fit_on, texts)

    def _fits(self, space: Space, names: Sequence[Text], texts: Integers) -> Fits:
        """Fits on these texts of a space; those of no group are in none of `by_group`."""

        def fits(texts: Integers, by_group: Mapping[Label, Fits] | None = None) -> Fits:
            used = [names[i] for i in texts]
            return Fits(lambda level: space.source(level, texts), self.candidates, used, by_group)

        members: dict[Label, list[int]] = {}
        for number in texts.tolist() if self.text_groups else ():
            if names[number] in self.text_groups:
                members.setdefault(self.text_groups[names[number]], []).append(number)
        return fits(texts, {label: fits(np.array(own)) for label, own in members.items()})

    @cached_property
    def _elsewhere(self) -> Space:
        """The space of `fit_on`."""
        assert self.fit_on is not None
        return space_of(self.encoder, self.fit_on)

    def _other_rows(self, items: Integers) -> NDArray[np.bool_]:
        """Which keyed vectors belong to no text of the items and equal no vector of theirs."""
        rows, words = self.encoder.vectors, self.encoder.words
        used = [self.task.texts[i] for i in self.task.texts_of(items)]
        equal, names = {rows[words[text]].tobytes() for text in used}, set(map(identity, used))
        others = np.array([row.tobytes() not in equal for row in rows])
        others[[row for text, row in words.items() if identity(text) in names]] = False
        return others

    def _without(self, texts: Integers, items: Integers) -> Integers:
        """The texts that belong to none of the items."""
        if not len(items):
            return texts
        same = self.task.identities
        return texts[~np.isin(same[texts], same[self.task.texts_of(items)])]


def bench_of(
    vectors: Any,
    task: Task,
    candidates: Callable[[Space], Sequence[Candidate]],
    fit_on: Sequence[Text] | None = None,
    transductive: bool = False,
    text_groups: Mapping[Text, Label] | None = None,
) -> Bench:
    """The bench of a task with vectors of its texts; candidates may depend on their space."""
    texts = None if fit_on is None else distinct_texts(fit_on)
    encoder = as_encoder(vectors, task.texts)
    space = space_of(encoder, task.texts)
    joined = task.joined(space.pooled)
    tried = candidates(space)
    alone = [one for one in tried if one.per_group and not text_groups]
    if alone:
        raise InputError(
            f"groups must be given for {alone[0]}, got none. Give them, or leave it out."
        )
    return Bench(encoder, joined, space, tried, texts, transductive, text_groups or {})


def n_of_group(fits: Fits, label: Label) -> int:
    """The number of texts that a group is fitted on."""
    return len(fits.by_group[label].texts) if label in fits.by_group else 0


def distinct_texts(texts: Sequence[Text]) -> list[Text]:
    """The distinct texts of `fit_on`, at least one."""
    found, _ = distinct(expect_texts(texts, "fit_on"))
    if not found:
        raise InputError("fit_on must have at least one text, got none.")
    return found


def grouped_folds(
    groups: Integers, n_folds: int, seed: int, strata: NDArray[Any] | None = None
) -> Integers:
    """The fold of each item: whole groups, dealt by size back and forth, evenly over the folds.

    With strata, each of them is dealt evenly, unless a few large groups would then make folds of
    unlike size. A group is in the stratum of its first item.
    """
    _, first, places, sizes = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    n_made = min(n_folds, len(sizes))
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    there_and_back = np.concatenate([np.arange(n_made), np.arange(n_made)[::-1]])
    of_group = np.empty(len(sizes), dtype=np.int64)
    of_group[order] = np.resize(there_and_back, len(sizes))
    if strata is not None:
        order = order[np.argsort(strata[first[order]], kind="stable")]
        by_stratum = np.empty_like(of_group)
        by_stratum[order] = np.resize(there_and_back, len(sizes))
        counts = np.bincount(by_stratum, sizes, n_made)
        if counts.max() - counts.min() <= 2 * sizes.max():
            of_group = by_stratum
    return of_group[places]


def subsample(items: Integers, n: int, seed: int = 0) -> Integers:
    """At most n of the items, drawn with a seed, in their order."""
    if len(items) <= n:
        return items
    return np.sort(np.random.default_rng(seed).choice(items, n, replace=False))


def exclusion_note(n_texts: int) -> str:
    """How many evaluated texts repairs are not fitted on, in words."""
    texts = "1 evaluated text was" if n_texts == 1 else f"{n_texts:,} evaluated texts were"
    return f"{texts} excluded from fitting."

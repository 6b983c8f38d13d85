"""Which items `advise` uses to choose a repair, and which to score the choice."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np

from isotropy.evidence.bench import subsample
from isotropy.evidence.spaces import Integers
from isotropy.tasks import UNDIVIDED, Task

HELD_OUT = "held-out folds"
KEPT = 0.5  # least share of a part that must remain after items are excluded
ENOUGH_GROUPS = 100  # with this many effective groups, no item is excluded to get more
LARGE = 0.05  # a group with a larger share of the items is broken up


@dataclass(frozen=True)
class Split:
    """The items that `advise` uses, by number."""

    inside: Integers  # to choose
    outside: Integers | None  # to score the choice; None for held-out folds of `inside`
    scored_on: str  # what the choice is scored on
    words: str  # how many items are used for what, and why not the others
    n_removed: int = 0  # training texts that repairs aren't fitted on, as they are scored
    pooled: bool = False  # whether parts of the task are joined

    @property
    def used(self) -> Integers:
        return self.inside if self.outside is None else np.union1d(self.inside, self.outside)

    def task(self, task: Task) -> Task:
        """The task with only the items used, undivided if parts are joined."""
        used = self.used
        found = task if len(used) == task.n_items else task.subset(used)
        if self.pooled:
            found = copy.copy(found)
            found.part = np.full(len(used), UNDIVIDED)
            found.parts = {UNDIVIDED: np.arange(len(used))}
        return found

    def within(self) -> tuple[Integers, Integers | None]:
        """`inside` and `outside`, numbered as in `task`."""
        outside = None if self.outside is None else np.searchsorted(self.used, self.outside)
        return np.searchsorted(self.used, self.inside), outside

    def without(self, n_items: int) -> Split:
        """The split, saying that n_items more were excluded because of their vectors."""
        if not n_items:
            return self
        more = f" {n_items:,} more were excluded: their vectors are those of scored texts."
        return replace(self, words=self.words + more)


def divided(task: Task, max_items: int, seed: int) -> Split:
    """Items to choose with and items to score on, which share no sentence.

    Items of the training part that share a sentence with the scored part are excluded. If that
    would be most of them, those of the scored part are; if that would be most of them too, both
    parts are joined and evaluated in folds that share no sentence.
    """
    train = next(part for part in ("train", "dev", *task.parts) if part in task.parts)
    test = next((part for part in ("test", "dev") if part in task.parts), train)
    if test == train:
        words = f"Items used: all {task.n_items:,} items, each scored in a held-out fold."
        return Split(np.arange(task.n_items), None, HELD_OUT, words)
    items, outside = task.parts[train], task.parts[test]
    alone = disjoint(task, items, outside)
    n_shared = len(items) - len(alone)
    if len(alone) >= min(max_items, KEPT * len(items)):
        inside = subsample(alone, max_items, seed)
        same = task.identities
        in_both = np.isin(same[task.texts_of(items)], same[task.texts_of(outside)])
        why = [*_shared(n_shared, test), *_most(max_items, len(inside) < len(alone))]
        chosen = _counted(len(inside), len(items), f"items of the {train} part", why)
        words = f"Items used: {chosen} to choose, all {len(outside):,} of the {test} part to score."
        return Split(inside, outside, f"the {test} part", words, int(in_both.sum()))
    left = disjoint(task, outside, items)
    if len(left) >= KEPT * len(outside):
        inside = subsample(items, max_items, seed)
        why = _most(max_items, len(inside) < len(items))
        chosen = _counted(len(inside), len(items), f"items of the {train} part", why)
        why = _shared(len(outside) - len(left), train)
        scored = _counted(len(left), len(outside), f"of the {test} part", why)
        words = f"Items used: {chosen} to choose, {scored} to score."
        return Split(inside, left, f"the {test} part", words)
    because = f"{n_shared:,} of {len(items):,} {train} items share a sentence with the {test} part"
    pool = np.union1d(subsample(items, max_items, seed), outside)
    inside = separable(task, pool, seed)
    parts = f"of the {train} and {test} parts together"
    n_items = len(np.union1d(items, outside))
    n_tied = len(pool) - len(inside)
    why = _most(max_items, len(pool) < n_items, f" of the {train} part")
    if n_tied:
        why.insert(0, f"{n_tied:,} excluded because they share sentences with most other items")
    used = _counted(len(inside), n_items, parts, why)
    words = f"Items used: {used}, each scored in a held-out fold, since {because}."
    return Split(inside, None, HELD_OUT, words, pooled=True)


def _shared(n_items: int, part: str) -> list[str]:
    return [f"{n_items:,} excluded for sharing a sentence with the {part} part"] if n_items else []


def _most(max_items: int, more: bool, of: str = "") -> list[str]:
    return [f"at most {max_items:,}{of} are used"] if more else []


def _counted(n_used: int, n_all: int, what: str, why_not: list[str]) -> str:
    if n_used == n_all:
        return f"all {n_all:,} {what}"
    return f"{n_used:,} of {n_all:,} {what} ({'; '.join(why_not)})"


def disjoint(task: Task, items: Integers, others: Integers) -> Integers:
    """The items that share no text with the others."""
    same = task.identities[task.members]
    return items[~np.isin(same[items], same[others]).any(axis=1)]


def separable(task: Task, items: Integers, seed: int) -> Integers:
    """The items, or a subset that makes more groups if most of them are in a few groups.

    While one group of items that share sentences holds more than a twentieth of all items, a
    random half of it is removed, which breaks it up. The items with the most groups are kept.
    """
    random = np.random.default_rng(seed)
    groups = task.groups[items]
    best, left, most = items, items, effective_groups(groups)
    while most < ENOUGH_GROUPS:
        _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        largest = np.flatnonzero(places == sizes.argmax())
        if len(largest) < max(2, LARGE * len(left)):
            break
        left = np.delete(left, random.choice(largest, len(largest) // 2, replace=False))
        if len(left) < 2:
            break
        groups = task.subset(left).groups
        n_groups = effective_groups(groups)
        if n_groups > most:
            best, most = left, n_groups
    return best


def effective_groups(groups: Integers) -> float:
    """The number of equally large groups that carry as much information: (sum n)^2/sum n^2."""
    _, sizes = np.unique(groups, return_counts=True)
    return float(sizes.sum()) ** 2 / float(np.square(sizes).sum())

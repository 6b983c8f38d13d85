"""check_task: what every task promises."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.models import Span
from isotropy.tasks import Outcome, Task
from isotropy.testing.common import expect, expect_close, expect_equal, expect_refused, run

N_FEATURES = 8


def check_task(task: Task, expected_failed_checks: Mapping[str, str] | None = None) -> None:
    """Check the items and texts of a task, its scores of random vectors, and its subsets.

    Parameters
    ----------
    task : Task
        With at least 8 items, and at least 4 in each part if it is divided.
    expected_failed_checks : mapping of str to str, optional
        As of `check_metric`, and so are errors.

    Examples
    --------
    >>> from isotropy.tasks import STS
    >>> check_task(STS([(f"text {i}", f"text {i + 1}") for i in range(10)], range(10)))
    """
    run(TASK_CHECKS, expected_failed_checks or {}, task)


def vectors(task: Task) -> NDArray[np.float64]:
    """A random row for each text, with a mean of its own."""
    random = np.random.default_rng(0)
    found: NDArray[np.float64] = random.standard_normal((len(task.texts), N_FEATURES)) + 0.5
    return found


def halves(task: Task) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items to score and items to learn from: the parts, or every other item."""
    numbers = np.arange(task.n_items)
    train = task.parts.get("train", numbers[::2])
    return task.parts.get("test", np.setdiff1d(numbers, train)), train


def score(task: Task, X: Any, items: Any = None) -> Outcome:
    """The outcome of the items, learned from the second half where the task learns."""
    return task.score(X, items, halves(task)[1])


def check_it_says_what_it_is(task: Task) -> None:
    kind = type(task)
    expect(Task.by_kind.get(task.kind) is kind, f"{kind.__name__} must have a kind of its own")
    expect(task.metric, "the task must name its metric")
    expect(task.name and task.name in repr(task), "the task must have a name, shown in its repr")
    expect(kind.__doc__, f"{kind.__name__} must have a docstring")


def check_texts_are_distinct_and_all_used(task: Task) -> None:
    expect(len(set(task.texts)) == len(task.texts), "texts must be distinct")
    used = np.concatenate([task.texts_of(np.arange(task.n_items)), task.background])
    expect_equal(np.sort(used), np.arange(len(task.texts)), "numbers of the texts that are used")
    _, first = np.unique(task.members, return_index=True)
    expect((np.diff(first) > 0).all(), "texts must be in the order of their first appearance")


def check_parts_divide_the_items(task: Task) -> None:
    numbers = np.sort(np.concatenate(list(task.parts.values())))
    expect_equal(numbers, np.arange(task.n_items), "items of all parts")
    expect(task.groups.shape == (task.n_items,), "groups must have an entry for each item")


def check_score_is_an_outcome_of_the_items(task: Task) -> None:
    items, _ = halves(task)
    outcome = score(task, vectors(task), items)
    expect(isinstance(outcome, Outcome), f"score must give an Outcome, got {outcome!r}")
    expect(outcome.n_items == len(items), f"{outcome.n_items} items are scored, not {len(items)}")
    expect(-1 <= outcome.value <= 1, f"the value must be in [-1, 1], got {outcome.value}")
    finite = all(np.isfinite(value) for value in outcome.metrics.values())
    expect(finite, f"metrics must be finite, got {outcome.metrics}")
    again = outcome.resampled(np.ones((2, len(items)), int))
    expect_close(again, [outcome.value] * 2, 1e-6, "the value of every item drawn once")


def check_the_same_vectors_give_the_same_digits(task: Task) -> None:
    X = vectors(task)
    first, second = score(task, X), score(task, X)
    expect_equal(second.value, first.value, "the value")
    expect(first.metrics == second.metrics, "metrics must be the same twice")
    expect_equal(X, vectors(task), "the vectors")


def check_neither_scale_nor_precision_matters(task: Task) -> None:
    X = vectors(task)
    value = score(task, X).value
    expect_close(score(task, 100 * X).value, value, 1e-6, "the value of vectors times 100")
    single = score(task, X.astype(np.float32)).value
    expect(abs(single - value) <= 1e-5, f"the value must be {value} in float32 too, got {single}")
    expect_equal(score(task, X.tolist()).value, value, "the value of lists")


def check_rows_that_are_not_needed_may_hold_anything(task: Task) -> None:
    X, (items, train) = vectors(task), halves(task)
    needed = task.texts_of(np.concatenate([items, train]))
    blank = np.full_like(X, np.nan)
    blank[needed], blank[task.background] = X[needed], X[task.background]
    expect_equal(score(task, blank, items).value, score(task, X, items).value, "the value")


def check_vectors_of_zeros_give_a_value(task: Task) -> None:
    value = score(task, np.zeros_like(vectors(task))).value
    expect(np.isnan(value) or -1 <= value <= 1, f"the value must be NaN or in [-1, 1], got {value}")


def check_a_subset_scores_as_the_task_does_on_its_items(task: Task) -> None:
    X, (items, train) = vectors(task), halves(task)
    n_items = task.n_items
    kept = np.concatenate([train, items[::-1]])
    part = task.subset(kept)
    expect(part.n_items == len(kept), f"the subset has {part.n_items} items, not {len(kept)}")
    for name, numbers in part.parts.items():
        n_kept = len(np.intersect1d(task.parts[name], kept))
        expect(len(numbers) == n_kept, f"part {name} has {len(numbers)} items, not {n_kept}")
    rows = X[[task.texts.index(text) for text in part.texts]]
    learned, scored = np.split(np.arange(len(kept)), [len(train)])
    found, wanted = part.score(rows, scored, learned), task.score(X, items[::-1], train)
    expect_equal(found.value, wanted.value, "the value of the subset")
    expect(found.metrics == wanted.metrics, "metrics of the subset must be those of its items")
    expect(task.n_items == n_items, "subset must leave the task as it was")
    check_texts_are_distinct_and_all_used(part)
    everything = task.subset(np.arange(n_items))
    expect(everything.texts == task.texts, "a subset of all items must keep the texts")
    expect_equal(everything.groups, task.groups, "groups of a subset of all items")
    expect_equal(score(everything, X).value, score(task, X).value, "its value")


def check_items_of_different_groups_share_no_text(task: Task) -> None:
    for group in np.unique(task.groups):
        outside = np.flatnonzero(task.groups != group)
        inside = task.texts_of(np.flatnonzero(task.groups == group))
        if len(outside):
            shared = np.intersect1d(inside, task.texts_of(outside))
            expect(not len(shared), f"texts {shared[:3]} are in group {group} and in others")


def check_bad_arguments_are_refused(task: Task) -> None:
    X, last = vectors(task), task.n_items - 1
    for change, message in (
        ({"vectors": X[1:]}, "vectors must have a row for each of the .* texts, got"),
        ({"vectors": X[0]}, "X must be two-dimensional"),
        ({"vectors": X * np.nan}, "vectors must be finite, got NaN or infinity in the"),
        ({"items": []}, "items must be a list of item numbers"),
        ({"items": [0.5]}, "items must be a list of item numbers"),
        ({"items": [3, 99_999]}, rf"items must be in \[0, {last}\], got 99999"),
        ({"items": [-1]}, rf"items must be in \[0, {last}\], got -1"),
    ):
        given: dict[str, Any] = {"vectors": X, "items": [0, 1], "train": halves(task)[1]}
        call = partial(task.score, **(given | change))
        expect_refused(call, f"^{type(task).__name__}: {message}")


def check_only_a_supervised_task_needs_items_to_learn_from(task: Task) -> None:
    call = partial(task.score, vectors(task))
    if task.supervised:
        expect_refused(call, "train must name the items to learn from, got None")
    else:
        expect(np.isfinite(call().value), "the value must be finite")


def check_bad_items_are_refused(task: Task) -> None:
    n_texts = task.members.shape[1]
    empty: Any = Span("some text", 4, 4) if isinstance(task.texts[0], Span) else " "
    make = partial(Task.__init__, task.subset(np.arange(task.n_items)))
    for items, part, message in (
        ([(empty,) * n_texts] * 3, None, "item 0 must have text, got"),
        ([("a",) * n_texts] * 2, ["train", "later"], "part must be one of 'train'.*'later'"),
        ([("a",) * n_texts], None, "'x' must have at least 2 items, got 1"),
        ([("a",) * n_texts, ("a",) * 9], None, "item 1 must have .* texts, as many as the others"),
    ):
        expect_refused(partial(make, items, part, "x"), message)


TASK_CHECKS = [
    check_it_says_what_it_is,
    check_texts_are_distinct_and_all_used,
    check_parts_divide_the_items,
    check_score_is_an_outcome_of_the_items,
    check_the_same_vectors_give_the_same_digits,
    check_neither_scale_nor_precision_matters,
    check_rows_that_are_not_needed_may_hold_anything,
    check_vectors_of_zeros_give_a_value,
    check_a_subset_scores_as_the_task_does_on_its_items,
    check_items_of_different_groups_share_no_text,
    check_bad_arguments_are_refused,
    check_only_a_supervised_task_needs_items_to_learn_from,
    check_bad_items_are_refused,
]

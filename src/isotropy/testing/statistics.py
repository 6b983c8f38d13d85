"""check_statistic: what every statistic promises."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.stats import ClusterMoments, Moments, Sample, Statistic
from isotropy.testing.common import expect, expect_close, expect_equal, expect_refused, run

N_ROWS, N_FEATURES = 120, 5
N_SPLITS = 30  # random ones that are tried
CUT = 50  # where rows are cut in two


def check_statistic(
    statistic: Statistic,
    others: Sequence[Statistic] = (),
    X: Any = None,
    expected_failed_checks: Mapping[str, str] | None = None,
) -> None:
    """Check that a statistic merges, that its state brings it back, and what weights mean.

    Parameters
    ----------
    statistic : Statistic
        One that has seen no rows, with its settings.
    others : sequence of Statistic
        Statistics of the same kind with other settings, which it must refuse to merge with.
    X : array of shape (n_samples, n_features), optional
        Rows to check it on, at least 100; by default 120 of 5 features.
    expected_failed_checks : mapping of str to str, optional
        As of `check_metric`, and so are errors.

    Examples
    --------
    >>> from isotropy.stats import Moments
    >>> check_statistic(Moments())
    """
    run(STATISTIC_CHECKS, expected_failed_checks or {}, Checked(statistic, others, X))


@dataclass
class Checked:
    """A statistic that is checked, the ones it must not merge with, and rows."""

    statistic: Statistic
    others: Sequence[Statistic] = ()
    X: Any = None

    def __post_init__(self) -> None:
        self.X = rows() if self.X is None else np.asarray(self.X)
        self.weights = np.random.default_rng(5).integers(0, 4, len(self.X)).astype(float)

    @property
    def n(self) -> int:
        return len(self.X)

    def fresh(self) -> Statistic:
        """One that has seen no rows."""
        return self.statistic.empty()

    def of(self, X: Any, w: Any = None, first_row: int = 0) -> Statistic:
        """One that has seen these rows."""
        return self.fresh().update(X, w, first_row)

    def parts(self, cuts: Sequence[int], X: Any = None, w: Any = None) -> list[Statistic]:
        """Statistics of the rows between cuts."""
        X = self.X if X is None else X
        return [
            self.of(X[a:b], None if w is None else w[a:b], a)
            for a, b in pairwise([0, *cuts, len(X)])
        ]


def rows() -> NDArray[np.float64]:
    """Skewed rows, two of them zero."""
    X = np.random.default_rng(4).exponential(size=(N_ROWS, N_FEATURES))
    X = X * np.linspace(2, 0.5, N_FEATURES) - 0.5
    X[[3, CUT]] = 0.0
    return X


def values(statistic: Statistic) -> dict[str, Any]:
    """What a statistic knows, whatever point its sums were taken about."""
    if isinstance(statistic, ClusterMoments):
        parts = [values(cluster) for cluster in statistic.clusters]
        return {f"{i}.{k}": v for i, part in enumerate(parts) for k, v in part.items()}
    if not isinstance(statistic, Moments):
        return dict(statistic.state())
    found: dict[str, Any] = {"n_rows": statistic.n_rows, "weight": statistic.weight}
    if statistic.weight == 0:
        return found
    return found | {
        "mean": statistic.mean,
        "scatter": statistic.scatter,
        "third": statistic.centred.third,
        "fourth": statistic.centred.fourth,
        "resolution": statistic.resolution,
    }


def expect_same(found: Statistic, wanted: Statistic, tolerance: float = 1e-12) -> None:
    """Raise AssertionError unless both know the same, up to tolerance."""
    left, right = values(found), values(wanted)
    expect(left.keys() == right.keys(), f"parts are {list(left)}, not {list(right)}")
    for name, value in right.items():
        expect_close(left[name], value, tolerance, name)


def expect_state(statistic: Statistic, state: Mapping[str, Any]) -> None:
    """Raise AssertionError unless the statistic has this state, to the last digit."""
    found = statistic.state()
    expect(found.keys() == state.keys(), f"parts are {list(found)}, not {list(state)}")
    for name, value in state.items():
        expect_equal(found[name], value, name)


def check_any_split_and_merge_order_equals_one_pass(kind: Checked) -> None:
    random = np.random.default_rng(0)
    for n_cuts in range(N_SPLITS):
        cuts = np.sort(random.choice(np.arange(1, kind.n), n_cuts % 7, replace=False)).tolist()
        w = kind.weights if n_cuts % 2 else None
        parts = kind.parts(cuts, w=w)
        while len(parts) > 1:
            taken = parts.pop(random.integers(len(parts)))
            parts[random.integers(len(parts))].merge(taken)
        expect_same(parts[0], kind.of(kind.X, w))


def check_updating_in_parts_equals_one_pass(kind: Checked) -> None:
    random = np.random.default_rng(1)
    for n_cuts in range(N_SPLITS):
        cuts = np.sort(random.choice(np.arange(1, kind.n), n_cuts % 7, replace=False)).tolist()
        found = kind.fresh()
        for a, b in pairwise([0, *cuts, kind.n]):
            found.update(kind.X[a:b], first_row=a)
        expect_same(found, kind.of(kind.X))


def check_empty_is_the_identity(kind: Checked) -> None:
    X, w = kind.X, kind.weights
    all_rows = kind.of(X, w)
    expect_same(kind.fresh().merge(all_rows), all_rows)
    expect_same(kind.of(X, w).merge(kind.fresh()), all_rows)
    expect_same(kind.fresh().merge(kind.fresh()), kind.fresh())
    expect_same(kind.fresh().merge(kind.fresh()).update(X, w), all_rows)
    expect_same(all_rows.empty(), kind.fresh())
    expect_same(all_rows.empty().update(X, w), all_rows)


def check_merging_is_associative(kind: Checked) -> None:
    a, b, c = kind.parts([30, 75])
    left = a.merge(b).merge(c)
    a, b, c = kind.parts([30, 75])
    expect_same(left, a.merge(b.merge(c)))


def check_merge_leaves_the_other_as_it_was(kind: Checked) -> None:
    left, right = kind.parts([40])
    for mine in (kind.fresh(), left):
        before = copy.deepcopy(right.state())
        mine.merge(right).update(kind.X[:10], first_row=1000)
        expect_state(right, before)


def check_rows_and_weights_are_not_modified(kind: Checked) -> None:
    X, w = kind.X.copy(), kind.weights.copy()
    X.flags.writeable = w.flags.writeable = False
    kind.of(X, w).update(X[:5], first_row=kind.n)
    expect_equal(X, kind.X, "the rows")
    expect_equal(w, kind.weights, "the weights")


def check_state_brings_the_statistic_back(kind: Checked) -> None:
    for statistic in (kind.fresh(), kind.of(kind.X)):
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **statistic.state())
        with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as saved:
            back = type(statistic).from_state(dict(saved))
        expect_state(back, statistic.state())
        more = kind.X[:7] + 1
        statistic.update(more, first_row=kind.n)
        expect_same(back.update(more, first_row=kind.n), statistic, 0)
        expect_same(kind.fresh().merge(back), statistic)


def check_a_state_is_not_changed_by_later_updates(kind: Checked) -> None:
    statistic = kind.of(kind.X[:60])
    state = statistic.state()
    before = copy.deepcopy(state)
    again = type(statistic).from_state(state)
    for one in (statistic, again):
        one.update(kind.X[60:], first_row=60)
    for name, value in before.items():
        expect_equal(state[name], value, name)
    expect_same(again, statistic)


def check_rows_of_another_width_are_refused(kind: Checked) -> None:
    d = kind.X.shape[1]
    update = partial(kind.of(kind.X).update, np.ones((4, d - 1)), first_row=kind.n)
    expect_refused(update, f"rows must have {d} features .* got {d - 1}")


def check_statistics_that_do_not_fit_are_refused(kind: Checked) -> None:
    full, d = kind.of(kind.X), kind.X.shape[1]
    stranger: Any = Moments() if isinstance(full, Sample) else Sample(17)
    name = type(full).__name__
    expect_refused(partial(full.merge, stranger), f"{name}: other must be of the same kind, got")
    for other in kind.others:
        expect_refused(partial(full.merge, other), f"{name}: other must have")
    if not kind.others:
        narrow = partial(kind.fresh().update, np.ones((4, d - 1)))
        expect_refused(lambda: full.merge(narrow()), f"rows must have {d} features .* got {d - 1}")


def check_tensors_equal_arrays(kind: Checked) -> None:
    if find_spec("torch") is None:
        return
    import torch

    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "uint8"):
        X = torch.asarray(np.abs(kind.X) * 8).to(getattr(torch, dtype))
        floats = X.to(torch.float64 if dtype in ("float64", "int64") else torch.float32).numpy()
        found = kind.of(X, torch.asarray(kind.weights))
        expect_same(found, kind.of(floats, kind.weights))
        plain = all(isinstance(value, np.ndarray) for value in found.state().values())
        expect(plain, "the state must be numpy arrays")
        first, second = kind.parts([CUT], floats)
        mixed = kind.of(X[:CUT]).merge(kind.of(floats[CUT:], first_row=CUT))
        expect_same(mixed, kind.fresh().merge(first).merge(second))
    X = torch.asarray(kind.X).requires_grad_()
    expect_same(kind.of(X), kind.of(kind.X))


def check_narrow_rows_equal_the_same_numbers_in_floats(kind: Checked) -> None:
    pairs = (("float16", "float32"), ("int8", "float32"), ("int64", "float64"), ("bool", "float32"))
    for narrow, wide in pairs:
        X = (kind.X * 4).astype(narrow)
        expect_same(kind.of(X), kind.of(X.astype(wide)))


def check_rows_of_no_weight_do_not_count(kind: Checked) -> None:
    one_by_one, w = kind.fresh(), kind.weights
    for i in np.flatnonzero(w):
        one_by_one.update(kind.X[i : i + 1], w[i : i + 1], first_row=int(i))
    X = kind.X.copy()
    X[w == 0] *= 1e6
    expect_same(kind.of(X, w), one_by_one, 1e-11)


def check_bad_weights_are_refused(kind: Checked) -> None:
    name, n = type(kind.statistic).__name__, kind.n
    for w, message in (
        (np.ones(3), rf"sample_weight.shape == \(3,\), expected \({n},\)!"),
        (np.ones((n, 1)), "Sample weights must be 1D array or scalar, got 2D"),
        (-np.ones(n), "sample_weight must not be negative, got -1"),
        (np.full(n, np.nan), "sample_weight must be finite"),
    ):
        expect_refused(partial(kind.of, kind.X, w), f"{name}: {message}")


STATISTIC_CHECKS = [
    check_any_split_and_merge_order_equals_one_pass,
    check_updating_in_parts_equals_one_pass,
    check_empty_is_the_identity,
    check_merging_is_associative,
    check_merge_leaves_the_other_as_it_was,
    check_rows_and_weights_are_not_modified,
    check_state_brings_the_statistic_back,
    check_a_state_is_not_changed_by_later_updates,
    check_rows_of_another_width_are_refused,
    check_statistics_that_do_not_fit_are_refused,
    check_tensors_equal_arrays,
    check_narrow_rows_equal_the_same_numbers_in_floats,
    check_rows_of_no_weight_do_not_count,
    check_bad_weights_are_refused,
]

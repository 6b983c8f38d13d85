"""check_metric: what every metric promises."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse

from isotropy.geometry import measure
from isotropy.linalg import Floats
from isotropy.metrics import METRICS, Metric
from isotropy.testing.common import expect, expect_equal, expect_refused, run

CHANGES: dict[str, Callable[[Floats], Floats]] = {
    "rotation": lambda X: X @ _rotation(X.shape[1]),
    "scale": lambda X: 2.7 * X,
    "translation": lambda X: X + np.resize([3.0, -4, 5, 2, 0, 1], X.shape[1]),
}


def check_metric(
    metric: Callable[..., Any] | str,
    expected_failed_checks: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Check what a metric declares, what weights mean, and how bad input is refused.

    Parameters
    ----------
    metric : function or str
        A metric, or the name of one that only `measure` computes.
    expected_failed_checks : mapping of str to str, optional
        Checks to leave out, each with the reason. A metric over pairs of rows, for example, does
        not pass `check_integer_weights_equal_repeated_rows`, since no row is a pair with itself.
    **options
        Passed to the metric.

    Raises
    ------
    AssertionError
        If a check fails; the message begins with its name.

    Examples
    --------
    >>> import isotropy
    >>> check_metric(isotropy.metrics.isoscore)
    """
    run(METRIC_CHECKS, expected_failed_checks or {}, Checked.of(metric, options))


@dataclass(frozen=True)
class Checked:
    """A metric that is checked, with its options."""

    metric: Metric
    function: Callable[..., Any] | None
    options: dict[str, Any]

    @classmethod
    def of(cls, metric: Callable[..., Any] | str, options: dict[str, Any]) -> Checked:
        if isinstance(metric, str):
            return cls(METRICS[metric], None, options)
        known = getattr(metric, "metric", None)
        if not isinstance(known, Metric):
            raise AssertionError(f"{metric!r} must be declared with isotropy.metrics.metric")
        return cls(known, metric, options)

    def __call__(self, X: Any, **more: Any) -> dict[str, Floats]:
        """The parts of the value by name."""
        if self.function is None:
            return parts(measure(X, [self.metric.name], **more).values[self.metric.name])
        return parts(self.function(X, **self.options, **more))

    @property
    def weighted(self) -> bool:
        function = self.function
        return function is not None and "sample_weight" in inspect.signature(function).parameters


def rows(n_samples: int = 200, n_features: int = 6, seed: int = 0) -> Floats:
    """Rows with a mean and scales of their own."""
    random = np.random.default_rng(seed)
    scales = np.linspace(1.6, 0.6, n_features)
    found: Floats = random.standard_normal((n_samples, n_features)) * scales + 0.4
    return found


def two_groups() -> Floats:
    """Rows of which the first 90 lie apart."""
    X = rows()
    X[:90] += [12.0, -8, 0, 5, 0, 3]
    return X


def _rotation(n_features: int) -> Floats:
    square = np.random.default_rng(8).standard_normal((n_features, n_features))
    found: Floats = np.linalg.qr(square)[0]
    return found


def parts(value: Any, prefix: str = "value") -> dict[str, Floats]:
    """The numbers in a metric's value by name."""
    if not isinstance(value, Mapping):
        return {prefix: np.atleast_1d(np.asarray(value, dtype=float))}
    found: dict[str, Floats] = {}
    for key, part in value.items():
        found |= parts(part, f"{prefix}/{key}")
    return found


def expect_same(
    found: dict[str, Floats], wanted: dict[str, Floats], tolerance: float = 1e-6
) -> None:
    """Raise AssertionError unless all parts agree up to tolerance."""
    expect(found.keys() == wanted.keys(), f"parts are {list(found)}, not {list(wanted)}")
    for key, value in wanted.items():
        size = max(np.abs(value[np.isfinite(value)]).max(initial=0), 1e-3)
        np.testing.assert_allclose(found[key], value, rtol=0, atol=tolerance * size, err_msg=key)


def check_it_says_what_it_is(metric: Checked) -> None:
    known = metric.metric
    expect(METRICS.get(known.name) is known, f"{known.name} must be in METRICS")
    expect(known.summary, "the metric must have a summary")
    expect(known.equation, "the metric must have an equation")
    choices = ("higher", "lower", "nearer zero", "neither")
    expect(known.better in choices, f"better must be one of {choices}, got {known.better!r}")
    unknown = known.invariant - CHANGES.keys()
    expect(not unknown, f"invariant must be some of {list(CHANGES)}, got {sorted(unknown)}")
    low, high = known.range
    expect(low < high, f"range must be (low, high), got {known.range}")
    expect(metric.function is None or metric.function.__doc__, "the metric must have a docstring")


def awkward() -> Iterator[tuple[str, Floats]]:
    """Rows that are easy to get wrong, in both precisions, each with what they are."""
    for name, X in {
        "plain": rows(),
        "far from zero": rows() + 1e4,
        "fewer than features": rows(40, 60, seed=2),
        "on a line": np.outer(np.linspace(1, 2, 50), [1.0, 2, -1, 0.3]),
        "symmetric": np.concatenate([rows(), -rows()]),
        "equal": np.tile([1.3, 2.1, -0.7], (50, 1)),
    }.items():
        for dtype in ("float32", "float64"):
            yield f"{dtype} rows that are {name}", X.astype(dtype)


def check_value_is_within_the_declared_range(metric: Checked) -> None:
    low, high = metric.metric.range
    for words, X in awkward():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = metric(X)
        for key, part in found.items():
            known = part[~np.isnan(part)]
            inside = ((known >= low - 1e-12) & (known <= high + 1e-12)).all()
            expect(inside, f"{key} of {words} must be in [{low}, {high}], got {known}")


def check_rows_that_differ_give_numbers_or_a_warning(metric: Checked) -> None:
    named = f"{metric.metric.name}: "
    for words, X in awkward():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = metric(X)
        if not np.ptp(X, axis=0).any() or any(str(w.message).startswith(named) for w in caught):
            continue
        for key, part in found.items():
            numbers = not np.isnan(part).any()
            expect(numbers, f"{key} of {words} is NaN, without a warning that begins '{named}'")


def check_declared_invariances_hold(metric: Checked) -> None:
    X = two_groups()
    wanted = metric(X)
    for change in sorted(metric.metric.invariant):
        try:
            expect_same(metric(CHANGES[change](X)), wanted)
        except AssertionError as error:
            raise AssertionError(f"{change} must not change the value: {error}") from error


def check_what_is_not_declared_invariant_changes(metric: Checked) -> None:
    X = rows()
    before = metric(X)
    for change in sorted(CHANGES.keys() - metric.metric.invariant):
        after = metric(CHANGES[change](X))
        same = all(np.allclose(after[k], before[k], rtol=1e-5, atol=1e-5) for k in before)
        expect(not same, f"{change} does not change the value: name it in `invariant`")


def check_the_same_rows_give_the_same_digits(metric: Checked) -> None:
    X = two_groups()
    first, second = metric(X), metric(X)
    for key, value in first.items():
        expect_equal(second[key], value, key)


def check_tensors_equal_arrays(metric: Checked) -> None:
    if find_spec("torch") is None:
        return
    import torch

    for dtype in ("float32", "float64"):
        X = two_groups().astype(dtype)
        found, wanted = metric(torch.asarray(X)), metric(X)
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-9, err_msg=key)


def check_rows_are_not_modified(metric: Checked) -> None:
    X = two_groups()
    X.flags.writeable = False
    metric(X)
    expect_equal(X, two_groups(), "the rows")


def check_integer_weights_equal_repeated_rows(metric: Checked) -> None:
    if metric.weighted:
        X, w = rows(60), np.random.default_rng(1).integers(0, 4, 60)
        expect_same(metric(X, sample_weight=w), metric(np.repeat(X, w, axis=0)), 1e-9)


def check_rows_of_no_weight_do_not_count(metric: Checked) -> None:
    if not metric.weighted:
        return
    X = two_groups()
    w = (np.arange(len(X)) % 3 > 0).astype(float)
    for size in (1.0, 1e4):
        moved = np.where(w[:, None] > 0, X, size * X)
        expect_same(metric(moved, sample_weight=w), metric(X[w > 0]), 1e-9)


def check_bad_rows_are_refused(metric: Checked) -> None:
    if metric.function is None:
        return
    bad: list[tuple[Any, str]] = [
        (np.ones(3), r"X must be two-dimensional\. Expected 2D array, got 1D array instead"),
        (np.ones((0, 3)), r"X must have rows\. Found array with 0 sample"),
        (np.ones((3, 0)), r"X must have features\. Found array with 0 feature"),
        (np.ones((3, 2)) * 1j, r"X must be real\. Complex data not supported"),
        ([["a", "b"]], r"X must be numeric: .* Convert it to floats\."),
        (scipy.sparse.eye(4), r"X must be dense, got a sparse matrix\. .* X\.toarray\(\)"),
        (np.full((20, 3), np.nan), r"X must be finite, got NaN in 20 rows"),
    ]
    for value, word in ((np.nan, "NaN"), (-np.inf, "infinity")):
        X = rows()
        X[[17, 60, 61], [0, 1, 2]] = value
        bad += [
            (X, rf"X must be finite, got {word} in 3 rows \(first: 17, .* Drop those rows"),
            (X[:50], r".* in 1 row \(first: 17, "),
        ]
    for X, message in bad:
        expect_refused(partial(metric, X), f"^{metric.metric.name}: {message}")


def check_bad_weights_are_refused(metric: Checked) -> None:
    if not metric.weighted:
        return
    for w, message in (
        (np.zeros(200), "sample_weight must have a positive sum, got zeros only"),
        (np.ones(3), r"sample_weight.shape == \(3,\), expected \(200,\)!"),
        (-np.ones(200), "sample_weight must not be negative, got -1"),
        (np.full(200, np.inf), "sample_weight must be finite"),
    ):
        call = partial(metric, rows(), sample_weight=w)
        expect_refused(call, f"^{metric.metric.name}: {message}")


METRIC_CHECKS = [
    check_it_says_what_it_is,
    check_value_is_within_the_declared_range,
    check_rows_that_differ_give_numbers_or_a_warning,
    check_declared_invariances_hold,
    check_what_is_not_declared_invariant_changes,
    check_the_same_rows_give_the_same_digits,
    check_tensors_equal_arrays,
    check_rows_are_not_modified,
    check_integer_weights_equal_repeated_rows,
    check_rows_of_no_weight_do_not_count,
    check_bad_rows_are_refused,
    check_bad_weights_are_refused,
]

"""Whether one system is better than another: differences, intervals, p-values, items needed.

Everything is paired and by groups: items that share a sentence or a query are drawn and exchanged
together. Scores are averaged over folds and never pooled, as systems fitted on different text are
different systems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.tasks import Outcome

BLOCK_ELEMENTS = 1 << 21  # draws x items at a time: 16 MB of weights
ROUNDING = 1e-10  # draws that are this close to what was observed count as extreme

Draw = Callable[[np.random.Generator, int, int], NDArray[Any]]


@public
@dataclass(frozen=True, eq=False)
class Fold:
    """Two systems on the same items."""

    system: Outcome
    baseline: Outcome
    groups: NDArray[np.int64]
    """The group of every item, numbered alike in all folds of a comparison: folds of the same
    groups, such as one per seed, share their draws; others are independent."""

    def __post_init__(self) -> None:
        shapes = {(self.system.n_items,), (self.baseline.n_items,), np.shape(self.groups)}
        if len(shapes) != 1:
            raise InputError(
                f"system, baseline and groups must have the same items, got "
                f"{self.system.n_items}, {self.baseline.n_items} and {np.shape(self.groups)}."
            )

    @property
    def difference(self) -> float:
        """The system's score less the baseline's."""
        return self.system.value - self.baseline.value

    @property
    def n_items(self) -> int:
        return self.system.n_items


@public
def difference(folds: Sequence[Fold]) -> float:
    """Mean over folds of the system's score less the baseline's; NaN if a score is undefined.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy.tasks.outcomes import Mean
    >>> folds = [Fold(Mean([1, 1, 0]), Mean([1, 0, 0]), np.arange(3))]
    >>> round(difference(folds), 4)
    0.3333
    """
    _expect_folds(folds)
    return float(np.mean([fold.difference for fold in folds]))


@public
def interval(
    folds: Sequence[Fold], n_draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """(low, high) ends of the percentile interval of the difference, by paired bootstrap.

    In every draw the groups of each fold are drawn with replacement, as many as there are, and
    both scores are computed again on their items. Draws with an undefined score are ignored.
    (NaN, NaN) if the difference is NaN, or a fold is a single group, from which nothing can be
    drawn.
    """
    checks.real(level, "level", 0, 1)
    low, high = quantiles(folds, [(1 - level) / 2, (1 + level) / 2], n_draws, seed)
    return low, high


def quantiles(
    folds: Sequence[Fold], at: Sequence[float], n_draws: int = 2000, seed: int = 0
) -> list[float]:
    """Quantiles of the difference over the draws of `interval`; NaN where that is."""
    _expect_folds(folds)
    draws = _bootstrap(folds, checks.integer(n_draws, "n_draws", 1), seed)
    return [float(end) for end in np.quantile(draws, at)] if len(draws) else [math.nan] * len(at)


@public
def standard_error(folds: Sequence[Fold], n_draws: int = 500, seed: int = 0) -> float:
    """Standard deviation of the difference over the draws of `interval`; NaN if it is NaN."""
    _expect_folds(folds)
    n_draws = checks.integer(n_draws, "n_draws", 2)
    draws = _bootstrap(folds, n_draws, seed)
    return float(draws.std(ddof=1)) if len(draws) > 1 else math.nan


@public
def p_value(
    folds: Sequence[Fold], alternative: str = "two-sided", n_draws: int = 9_999, seed: int = 0
) -> float:
    """Probability of a difference this large between equal systems, by paired permutation.

    In every draw each group is exchanged between the two systems or not, at even odds; the kind of
    outcome determines what is exchanged, such as ranks. The p-value is (1 + draws at least as
    extreme)/(1 + draws), which is never 0.

    1 if the difference is NaN. Draws with an undefined score count as extreme. The alternative
    "greater" asks whether the system is better than the baseline.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy.tasks.outcomes import Mean
    >>> folds = [Fold(Mean(np.ones(12)), Mean(np.zeros(12)), np.arange(12))]
    >>> p_value(folds) < 0.005
    True
    """
    observed = difference(folds)
    checks.choice(alternative, "alternative", ("two-sided", "greater"))
    n_draws = checks.integer(n_draws, "n_draws", 1)
    if math.isnan(observed):
        return 1.0
    draws = np.zeros(n_draws)
    for part, fold, swaps in _drawn(folds, n_draws, seed, _swaps):
        draws[part] += fold.system.exchanged(fold.baseline, swaps)
    draws /= len(folds)
    if alternative == "two-sided":
        draws, observed = np.abs(draws), abs(observed)
    short = draws < observed - ROUNDING
    return float(1 + n_draws - short.sum()) / (1 + n_draws)


@public
def holm(p_values: Any) -> Floats:
    """p-values adjusted for their number by Holm's method, in their order.

    With p sorted, the i-th of m becomes the largest of (m - j + 1) p_j over j up to i, at most 1.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"p_values must be a list of numbers in [0, 1], got {p_values!r}.")
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(p) else steps
    return adjusted


@public
def items_needed(
    folds: Sequence[Fold],
    effect: float = 0.01,
    power: float = 0.8,
    alpha: float = 0.05,
    *,
    n_draws: int = 500,
    seed: int = 0,
) -> int:
    """Items needed to find a true difference of `effect` significant with probability `power`.

    n ((z_{1 - alpha/2} + z_power) se/effect)^2, where se is the standard error of the difference on
    the n items at hand, by bootstrap, which falls with the root of n; alpha is the level of the
    two-sided test. An effect of 0.01 is one point.
    """
    for name, value in {"effect": effect, "power": power, "alpha": alpha}.items():
        if not 0 < checks.real(value, name, 0, 1) < 1:
            raise InputError(f"{name} must be a number in (0, 1), got {value!r}.")
    error = standard_error(folds, n_draws, seed)
    if math.isnan(error):
        raise InputError("folds must have defined scores, got NaN. Check the labels.")
    z = scipy.stats.norm.ppf(1 - alpha / 2) + scipy.stats.norm.ppf(power)
    n_items = sum(bundle[0][0].n_items for _, bundle in _bundles(folds))
    return max(1, math.ceil(n_items * (z * error / effect) ** 2))


def _bootstrap(folds: Sequence[Fold], n_draws: int, seed: int) -> Floats:
    """Differences of the draws in which all scores are defined; none if the difference is not."""
    if math.isnan(difference(folds)) or any(n_groups < 2 for n_groups, _ in _bundles(folds)):
        return np.empty(0)
    draws = np.zeros(n_draws)
    for part, fold, weights in _drawn(folds, n_draws, seed, group_counts):
        draws[part] += fold.system.resampled(weights) - fold.baseline.resampled(weights)
    return draws[~np.isnan(draws)] / len(folds)


def _drawn(
    folds: Sequence[Fold], n_draws: int, seed: int, draw: Draw
) -> Iterator[tuple[slice, Fold, NDArray[Any]]]:
    """(which draws, fold, what was drawn for its items); folds of the same groups share draws."""
    checks.integer(seed, "seed", 0)
    for number, (n_groups, bundle) in enumerate(_bundles(folds)):
        random = np.random.default_rng([seed, number])
        rows = max(1, BLOCK_ELEMENTS // max(fold.n_items for fold, _ in bundle))
        for start in range(0, n_draws, rows):
            part = slice(start, min(start + rows, n_draws))
            drawn = draw(random, part.stop - start, n_groups)
            for fold, places in bundle:
                yield part, fold, drawn.take(places, axis=1)


Bundle = list[tuple[Fold, NDArray[np.int64]]]


def _bundles(folds: Sequence[Fold]) -> list[tuple[int, Bundle]]:
    """Folds of the same groups together: (number of groups, folds with their items' groups)."""
    found: dict[bytes, tuple[int, Bundle]] = {}
    for fold in folds:
        groups, places = np.unique(np.asarray(fold.groups), return_inverse=True)
        _, bundle = found.setdefault(groups.tobytes(), (len(groups), []))
        bundle.append((fold, places))
    return list(found.values())


def group_counts(random: np.random.Generator, n_draws: int, n_groups: int) -> NDArray[Any]:
    """How often each group is drawn."""
    drawn = random.integers(0, n_groups, (n_draws, n_groups))
    drawn += n_groups * np.arange(n_draws)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=n_draws * n_groups)
    return counts.reshape(n_draws, n_groups)


def _swaps(random: np.random.Generator, n_draws: int, n_groups: int) -> NDArray[Any]:
    """Whether each group is exchanged: one bit each, every draw starting with a new word."""
    words = random.integers(0, 1 << 64, (n_draws, -(-n_groups // 64)), dtype=np.uint64)
    return np.unpackbits(words.view(np.uint8), axis=1, count=n_groups).view(np.bool_)


def _expect_folds(folds: Sequence[Fold]) -> None:
    if not len(folds) or not all(isinstance(fold, Fold) for fold in folds):
        raise InputError(f"folds must be a list of at least one Fold, got {folds!r}.")

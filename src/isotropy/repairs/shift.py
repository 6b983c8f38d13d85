"""How far new rows are from those that a repair was fitted on."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.special import ndtri

from isotropy import linalg
from isotropy.checks import Array
from isotropy.engines import reduce
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.sources import Source
from isotropy.stats import Moments, Statistic
from isotropy.stored import HALF_THE_DIGITS, Field

FAR = 0.1
SHARE = 0.99
N_STRIPES = 16


@dataclass(frozen=True)
class Shift:
    """How far some rows are from the fitted ones; all distances are free of scale.

    Attributes
    ----------
    mean_shift : float
        Distance between the means, in root mean square deviations sqrt(tr C) of the fitted rows.
    frechet : float
        |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2), divided by tr C1: the squared
        Frechet distance between the normal distributions of these means and covariances. Zero
        where both are equal.
    outside : float
        Share of the rows that lie farther from the fitted mean than 99 % of the fitted rows.
    n_samples : int
        Rows that were looked at.
    chance : float
        What `frechet` between samples of these sizes from one distribution seldom exceeds.

    Notes
    -----
    Where the fitted rows' 99 % lie is told by their moments: squared distances from the mean are
    taken as log-normal, with their own mean and variance.

    The Frechet distance of two samples of one distribution falls as 1/n1 + 1/n2. `chance` is 2 +
    3/p times its expectation, p being the participation ratio of the fitted spectrum: the fewer
    directions, the more it fluctuates. The expectation is the larger of two: that for normal
    rows, expanded to second order,

        (1/n1 + 1/n2) (1 + (sum_ij l_i l_j / (l_i + l_j) / tr C + 1/2) / 2)

    with the fitted eigenvalues l, and that between two halves of the new rows, scaled to n1 and
    n2. The halves are made of alternate stripes, a sixteenth of the rows each, so that rows which
    come in groups, such as the tokens of a sentence, count as what they are worth.
    """

    mean_shift: float
    frechet: float
    outside: float
    n_samples: int
    chance: float

    @property
    def large(self) -> bool:
        """Whether `frechet` is more than 0.1 above chance, which is high where rows are few."""
        return self.frechet > FAR + self.chance

    def __str__(self) -> str:
        return (
            f"{self.n_samples:,} rows are {'far from' if self.large else 'near'} the fitted ones: "
            f"Frechet distance {self.frechet:.2g} (chance alone: up to {self.chance:.2g}), means "
            f"{self.mean_shift:.2g} deviations apart, {100 * self.outside:.1f} % of the rows "
            f"outside of {100 * SHARE:.0f} % of the fitted ones"
        )


def shift(fitted: Moments, source: Source, n_directions: int | None = None) -> Shift:
    """How far the rows of a source are from those with the fitted moments, in one pass.

    Covariances are compared in all dimensions, or in at most `n_directions` leading ones: then
    `frechet` is a lower bound, and no decomposition takes longer than that of so many.
    """
    height = max(1, source.n_samples // N_STRIPES)
    bound = reach(fitted.at_unit_scale) ** 0.5
    statistics: list[Any] = [
        Stripes(height, 0),
        Stripes(height, 1),
        Beyond(fitted.mean, float(linalg.scaled(np.float64(bound), -fitted.exponent))),
    ]
    first, second, beyond = reduce(source, statistics)
    if not first.n_rows + second.n_rows:
        raise InputError("X must have good rows, got none.")
    exponent = fitted.exponent_with(copy.copy(first).merge(second))
    first, second, fitted = (part.over(exponent) for part in (first, second, fitted))
    new = copy.copy(first).merge(second)
    basis = leading(fitted, new, n_directions or source.n_features)
    axes, trace = factor(fitted, basis), spread(fitted)
    return Shift(
        mean_shift=ratio(squared_distance(fitted.mean, new.mean), trace) ** 0.5,
        frechet=ratio(frechet(fitted, axes, new, factor(new, basis)), trace),
        outside=beyond.share,
        n_samples=new.n_rows,
        chance=chance(fitted, axes, new, of_halves(first, second, basis)),
    )


def frechet(one: Moments, axes: Floats, other: Moments, other_axes: Floats) -> float:
    """Squared Frechet distance between normal distributions, given the factors of both.

    tr(C1^1/2 C2 C1^1/2)^1/2 is the nuclear norm of A'B for any A A' = C1 and B B' = C2, and
    singular values keep the digits that roots of eigenvalues near zero lose.
    """
    overlap = float(scipy.linalg.svdvals(axes.T @ other_axes, check_finite=False).sum())
    size = float(np.vdot(axes, axes) + np.vdot(other_axes, other_axes))
    return squared_distance(one.mean, other.mean) + max(size - 2 * overlap, 0.0)


def factor(moments: Moments, basis: Floats | None = None) -> Floats:
    """A with A A' the covariance, in a basis: principal axes times deviations, as columns."""
    covariance = moments.scatter / moments.weight
    if basis is not None:
        covariance = basis.T @ covariance @ basis
    values, vectors = linalg.eigh(covariance)
    scaled: Floats = vectors * np.sqrt(linalg.resolved(values, moments.resolution))
    return scaled


def leading(one: Moments, other: Moments, n_directions: int) -> Floats | None:
    """Basis of directions in which either varies most, None where it would be all of them."""
    d = len(one.mean)
    if n_directions >= d:
        return None
    probes = np.random.default_rng(0).standard_normal((d, n_directions // 2))
    both = np.hstack([m.scatter @ probes / m.weight for m in (one, other)])
    return np.linalg.qr(both).Q


def spread(moments: Moments) -> float:
    """Mean squared distance from the mean, tr C."""
    return float(np.trace(moments.scatter)) / moments.weight


def squared_distance(one: Floats, other: Floats) -> float:
    """||one - other||^2, zero where that is rounding."""
    apart = float(np.square(one - other).sum())
    size = float(one @ one + other @ other)
    return apart if apart > (8 * float(np.finfo(np.float64).eps)) ** 2 * size else 0.0


def ratio(distance: float, trace: float) -> float:
    """distance / trace; where the fitted rows do not vary, any distance is infinite."""
    if distance == 0:
        return 0.0
    return distance / trace if trace > 0 else float("inf")


def chance(fitted: Moments, axes: Floats, new: Moments, halves: float) -> float:
    """Frechet distance that samples of one distribution seldom exceed; see `Shift`."""
    values = np.square(axes).sum(axis=0)
    trace = float(values.sum())
    if trace <= 0:
        return 0.0
    each = 1 / fitted.count + 1 / new.count
    expected = max(of_normal_rows(values[values > 0], each), each * halves)
    return (2 + 3 * float(values @ values) / trace**2) * expected


def of_normal_rows(values: Floats, each: float) -> float:
    """Expected distance of samples of normal rows with these eigenvalues, each = 1/n1 + 1/n2."""
    pairs = values[:, None] * values / (values[:, None] + values)
    covariances = (float(pairs.sum()) / float(values.sum()) + 0.5) / 2
    return each + min(each * covariances, 2.0)  # at 2 they have no direction in common


def of_halves(one: Moments, other: Moments, basis: Floats | None) -> float:
    """Distance between two halves of some rows over 1/n1 + 1/n2, zero where there is but one."""
    if not one.n_rows or not other.n_rows:
        return 0.0
    found = frechet(one, factor(one, basis), other, factor(other, basis))
    trace = (spread(one) * one.weight + spread(other) * other.weight) / (one.weight + other.weight)
    return found / trace / (1 / one.count + 1 / other.count) if trace > 0 else 0.0


def reach(fitted: Moments) -> float:
    """Squared distance from the mean within which 99 % of the fitted rows lie."""
    mean = spread(fitted)
    if mean <= 0:
        return 0.0
    variance = np.log(max(fitted.centred_fourth / fitted.weight / mean**2, 1.0))
    return mean * float(np.exp(ndtri(SHARE) * np.sqrt(variance) - variance / 2))


class Stripes(Moments):
    """Moments of every other stripe of `height` rows, from the first (0) or second (1) on."""

    numbers_rows = True
    fields = {
        "height": Field(kind="int", low=1),
        "start": Field(kind="int", low=0, high=1),
        **Moments.fields,
    }

    def __init__(self, height: int, start: int, origin: Array | None = None) -> None:
        super().__init__(origin)
        self.height = height
        self.start = start

    def empty(self) -> Self:
        return type(self)(self.height, self.start, self.origin)

    def settled(self, rows: Array) -> Self:
        return type(self)(self.height, self.start, Moments(self.origin).settled(rows).origin)

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        numbers = first_row + np.arange(X.shape[0]) if np.ndim(first_row) == 0 else first_row
        mine = numbers // self.height % 2 == self.start
        rows = np.flatnonzero(mine if w is None else mine & (w > 0))
        if len(rows):
            weights = None if w is None else w[rows]
            super()._update(X[linalg.index(rows, X)], weights, first_row)


class Beyond(Statistic):
    """Weight of the rows whose distance from a centre is above a bound."""

    fields = {
        "center": Field("n_features"),
        "bound": Field(low=0, infinite=True),
        "weight": Field(low=0),
        "outside": Field(low=0),
    }
    weighted = ("weight", "outside")

    def __init__(self, center: Array, bound: float) -> None:
        self.center: Floats = np.asarray(center, dtype=np.float64)
        self.bound = bound
        self.weight = 0.0
        self.outside = 0.0

    def empty(self) -> Self:
        return type(self)(self.center, self.bound)

    @property
    def n_features(self) -> int | None:
        return len(self.center)

    def _check_state(self) -> None:
        if self.outside > self.weight * (1 + HALF_THE_DIGITS):
            raise InputError(f"outside must be a part of weight {self.weight:g}, got more")

    @property
    def share(self) -> float:
        """Share of the weight that is outside."""
        return self.outside / self.weight

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        center = linalg.like(self.center, X)
        for _, rows, weight in linalg.blocks(X, w):
            outside = linalg.double(linalg.lengths(rows - center) > self.bound)
            self.outside += float(outside.sum() if weight is None else outside @ weight)
        self.weight += float(X.shape[0] if w is None else w.sum())

    def _merge(self, other: Beyond) -> None:
        self.weight += other.weight
        self.outside += other.outside

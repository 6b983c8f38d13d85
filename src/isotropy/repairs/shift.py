"""How far new rows are from the rows that a repair was fitted on."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.linalg
from scipy.special import ndtri

from isotropy import linalg
from isotropy.engines import reduce
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.sources import Source
from isotropy.stats import Moments, Outliers, StripedMoments

FAR = 0.1  # Frechet distance above chance that counts as large
SHARE = 0.99  # of the fitted rows
N_STRIPES = 16


@dataclass(frozen=True)
class Shift:
    """Distance between some rows and the fitted ones, whatever their scale.

    Attributes
    ----------
    mean_shift : float
        Distance between the means, in root mean square deviations sqrt(tr C) of the fitted rows.
    frechet : float
        |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2), divided by tr C1: the squared
        Frechet distance between normal distributions with these means and covariances.
    outside : float
        Share of the rows that lie farther from the fitted mean than 99 % of the fitted rows,
        whose squared distances are assumed to be log-normal.
    n_samples : int
    chance : float
        `frechet` between samples of these sizes from one distribution seldom exceeds this.

    Notes
    -----
    `chance` is 2 + 3/p times the expected distance between two samples of one distribution, where
    p is the participation ratio of the fitted spectrum: with fewer directions it fluctuates more.
    The expectation is the larger of two estimates. The first is for normal rows, expanded to second
    order, with the fitted eigenvalues l:

        (1/n1 + 1/n2) (1 + (sum_ij l_i l_j / (l_i + l_j) / tr C + 1/2) / 2)

    The second is the distance between two halves of the new rows, scaled to n1 and n2. The halves
    are alternate stripes, a sixteenth of the rows each, so that dependent neighbours, such as the
    tokens of a sentence, do not count as independent rows.
    """

    mean_shift: float
    frechet: float
    outside: float
    n_samples: int
    chance: float

    @property
    def large(self) -> bool:
        """Whether `frechet` exceeds `chance` by more than 0.1."""
        return self.frechet > FAR + self.chance

    def __str__(self) -> str:
        return (
            f"{self.n_samples:,} rows: Frechet distance {self.frechet:.3g} from the fitted ones "
            f"(chance alone: up to {self.chance:.3g}), means {self.mean_shift:.2g} deviations "
            f"apart, {100 * self.outside:.1f} % of the rows farther out than {100 * SHARE:.0f} % "
            "of the fitted ones"
        )


def shift(fitted: Moments, source: Source, n_directions: int | None = None) -> Shift:
    """Distance between the rows of a source and those with the fitted moments, in one pass.

    Covariances are compared in all dimensions, or in at most `n_directions` leading ones, which
    is faster and makes `frechet` a lower bound.
    """
    height = max(1, source.n_samples // N_STRIPES)
    bound = reach(fitted.at_unit_scale) ** 0.5
    outliers = Outliers(fitted.mean, float(linalg.scaled(np.float64(bound), -fitted.exponent)))
    halves: list[Any] = [StripedMoments(height, 0), StripedMoments(height, 1)]
    first, second, outliers = reduce(source, [*halves, outliers]).states
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
        outside=outliers.share,
        n_samples=new.n_rows,
        chance=chance(fitted, axes, new, of_halves(first, second, basis)),
    )


class HasMean(Protocol):
    """Anything with a mean."""

    @property
    def mean(self) -> Floats:
        """Of some rows."""


def frechet(one: HasMean, axes: Floats, other: HasMean, other_axes: Floats) -> float:
    """Squared Frechet distance between normal distributions, given the factors of both.

    tr(C1^1/2 C2 C1^1/2)^1/2 is the nuclear norm of A'B for any A A' = C1 and B B' = C2, and
    singular values keep the digits that roots of eigenvalues near zero lose.
    """
    overlap = float(scipy.linalg.svdvals(axes.T @ other_axes, check_finite=False).sum())
    size = float(np.vdot(axes, axes) + np.vdot(other_axes, other_axes))
    return squared_distance(one.mean, other.mean) + max(size - 2 * overlap, 0.0)


def factor(moments: Moments, basis: Floats | None = None) -> Floats:
    """A with A A' the covariance in a basis: principal axes times deviations, as columns."""
    covariance = moments.scatter / moments.weight
    if basis is not None:
        covariance = basis.T @ covariance @ basis
    values, vectors = linalg.eigh(covariance)
    scaled: Floats = vectors * np.sqrt(linalg.resolved(values, moments.resolution))
    return scaled


def leading(one: Moments, other: Moments, n_directions: int) -> Floats | None:
    """Basis of the directions in which either varies most, None for all directions."""
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
    """||one - other||^2, or zero if that is rounding error."""
    apart = float(np.square(one - other).sum())
    size = float(one @ one + other @ other)
    return apart if apart > (8 * float(np.finfo(np.float64).eps)) ** 2 * size else 0.0


def ratio(distance: float, trace: float) -> float:
    """distance / trace; if the fitted rows don't vary, any distance is infinite."""
    if distance == 0:
        return 0.0
    return distance / trace if trace > 0 else float("inf")


def chance(fitted: Moments, axes: Floats, new: Moments, halves: float) -> float:
    """The Frechet distance that samples of one distribution seldom exceed; see `Shift`."""
    values = np.square(axes).sum(axis=0)
    trace = float(values.sum())
    if trace <= 0:
        return 0.0
    each = 1 / fitted.count + 1 / new.count
    usual = max(expected(values, each), each * halves)
    return (2 + 3 * float(values @ values) / trace**2) * usual


def expected(values: Floats, each: float) -> float:
    """The expected distance of normal rows with these eigenvalues, where each is 1/n1 + 1/n2."""
    held = values[values > 0]
    pairs = held[:, None] * held / (held[:, None] + held)
    covariances = (float(pairs.sum()) / float(held.sum()) + 0.5) / 2
    return each + min(each * covariances, 2.0)  # 2: no direction in common


def of_halves(one: Moments, other: Moments, basis: Floats | None) -> float:
    """Distance between two halves of some rows over 1/n1 + 1/n2, zero if one is empty."""
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

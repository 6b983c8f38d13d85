"""Subtract the mean: alone, scaled by each row's norm, or with every dimension's scale undone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError, NotAffineError
from isotropy.linalg import Floats, like, namespace
from isotropy.repairs.base import Invertible, SummedRepair
from isotropy.repairs.steps import Step, SubtractScaled
from isotropy.stats import Directions, Moments
from isotropy.stored import HALF_THE_DIGITS, Field


@dataclass(eq=False, repr=False)
class Center(Invertible, SummedRepair):
    r"""Subtract the mean of the rows: x - mean.

    Attributes
    ----------
    mean_ : array of shape (n_features,)

    Notes
    -----
    Eq. 9 of Bis, Podkorytov and Liu 2021. Affine.

    Examples
    --------
    >>> import numpy as np
    >>> Center().fit_transform(np.array([[1.0, 2.0], [3.0, 6.0]]))
    array([[-1., -2.], [ 1., 2.]])
    """

    name = "center"
    learned = {"mean_": Field("n_features")}
    statistic = Moments

    normalize: bool = False

    def solve(self, statistic: Moments) -> None:
        self.mean_ = statistic.mean

    def apply(self, rows: Array, out: Array) -> None:
        out[:] = rows - like(self.mean_, rows)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = rows + like(self.mean_, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return np.eye(self.n_features_in_), -self.mean_


@dataclass(eq=False, repr=False)
class ScaledCenter(Invertible, SummedRepair):
    r"""Subtract the mean of the unit rows, times each row's own norm: x - ||x|| m.

    Attributes
    ----------
    direction_ : array of shape (n_features,)
        Mean m of the unit rows, without zero rows, which have no direction.

    Notes
    -----
    Section 5.2 of Bis, Podkorytov and Liu 2021. Not affine, because it uses each row's norm;
    on unit rows it subtracts `direction_`.

    Examples
    --------
    >>> import numpy as np
    >>> ScaledCenter().fit_transform(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array([[ 1., -1.], [-2., 2.]])
    """

    name = "scaled-center"
    learned = {"direction_": Field("n_features")}
    statistic = Directions

    normalize: bool = False

    def solve(self, statistic: Directions) -> None:
        weight = statistic.weight if statistic.weight > 0 else 1.0
        self.direction_ = linalg.to_numpy(statistic.unit_sum) / weight

    def _check_fitted(self) -> None:
        with np.errstate(over="ignore"):
            length = float(np.linalg.norm(self.direction_))
        if length > 1 + HALF_THE_DIGITS:
            raise InputError(f"direction_ must be a mean of unit rows, got length {length:g}")

    def apply(self, rows: Array, out: Array) -> None:
        wide = linalg.double(rows)  # float32 has few digits left of rows that are far from zero
        norms = linalg.lengths(wide)
        out[:] = like(wide - norms[:, None] * like(self.direction_, wide), out)

    def revert(self, rows: Array, out: Array) -> None:
        # r = ||x|| solves (1 - m.m) r^2 - 2 (y.m) r - y.y = 0, and its other root is negative
        m = like(self.direction_, rows)
        gap = max(1.0 - float(self.direction_ @ self.direction_), 1e-12)
        exponents = linalg.row_exponents(rows)
        units = linalg.scaled(rows, exponents)
        along = units @ m
        root = namespace(rows).sqrt(along**2 + gap * linalg.squared_norms(units))
        out[:] = linalg.scaled(units + ((along + root) / gap)[:, None] * m, -exponents)

    def affine_form(self) -> tuple[Floats, Floats]:
        raise NotAffineError(
            "the repair is not affine: it uses each row's norm. On unit rows it subtracts "
            "direction_; normalise the rows and use that."
        )

    def own_steps(self) -> list[Step]:
        return [SubtractScaled(self.direction_)]


@dataclass(eq=False, repr=False)
class Standardize(Invertible, SummedRepair):
    r"""Subtract the mean and divide every dimension by its standard deviation.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    scale_ : array of shape (n_features,)
        Standard deviations; one for a constant dimension, which becomes zero, not NaN.

    Notes
    -----
    Affine. Equal to scikit-learn's StandardScaler: deviations are those of the population.

    Examples
    --------
    >>> import numpy as np
    >>> Standardize().fit_transform(np.array([[1.0, 7.0], [3.0, 7.0]]))
    array([[-1., 0.], [ 1., 0.]])
    """

    name = "standardize"
    learned = {"mean_": Field("n_features"), "scale_": Field("n_features", low=0, above=True)}
    statistic = Moments

    normalize: bool = False

    def solve(self, statistic: Moments) -> None:
        self.mean_ = statistic.mean
        moments = statistic.at_unit_scale
        deviation = np.sqrt(np.maximum(np.diag(moments.scatter), 0) / moments.weight)
        rounding = 10 * float(np.finfo(np.float64).eps) * np.abs(moments.mean)
        varies = deviation > rounding
        self.scale_ = np.where(varies, linalg.scaled(deviation, -statistic.exponent), 1.0)

    def apply(self, rows: Array, out: Array) -> None:
        out[:] = (rows - like(self.mean_, rows)) / like(self.scale_, rows)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = rows * like(self.scale_, rows) + like(self.mean_, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return np.diag(1 / self.scale_), -self.mean_ / self.scale_

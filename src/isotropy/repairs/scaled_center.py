"""Subtract the mean direction, scaled by each row's norm."""

from __future__ import annotations

import numpy as np

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError, NotAffineError
from isotropy.linalg import Floats, like, namespace
from isotropy.repairs.base import Invertible, SummedRepair
from isotropy.stats import Directions
from isotropy.stored import HALF_THE_DIGITS, Field


class ScaledCenter(Invertible, SummedRepair):
    r"""Subtract the mean of the unit rows, times each row's own norm: x - ||x|| m.

    Parameters
    ----------
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    direction_ : array of shape (n_features,)
        Mean m of the unit rows, without zero rows, which have no direction.
    statistic_ : Directions
        What it was fitted on.
    moments_ : Moments
        Moments of the same rows, for `shift`.

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

    def __init__(self, normalize: bool = False) -> None:
        self.normalize = normalize

    def solve(self, statistic: Directions) -> None:
        weight = statistic.weight if statistic.weight > 0 else 1.0
        self.direction_ = linalg.to_numpy(statistic.unit_sum) / weight

    def _check_fitted(self) -> None:
        with np.errstate(over="ignore"):
            length = float(np.linalg.norm(self.direction_))
        if length > 1 + HALF_THE_DIGITS:
            raise InputError(f"direction_ must be a mean of unit rows, got length {length:g}")

    def apply(self, rows: Array, out: Array) -> None:
        norms = like(linalg.lengths(rows), rows)
        out[:] = rows - norms[:, None] * like(self.direction_, rows)

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

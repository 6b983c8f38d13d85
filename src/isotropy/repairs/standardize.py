"""Scale every dimension to mean zero and variance one."""

from __future__ import annotations

import numpy as np

from isotropy import linalg
from isotropy.checks import Array
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Invertible, SummedRepair
from isotropy.stats import Moments
from isotropy.stored import Field


class Standardize(Invertible, SummedRepair):
    r"""Subtract the mean and divide every dimension by its standard deviation.

    Parameters
    ----------
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    scale_ : array of shape (n_features,)
        Standard deviations; one for a constant dimension, which becomes zero, not NaN.
    statistic_ : Moments
        What it was fitted on.

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
    learned = {
        "mean_": Field("n_features"),
        "scale_": Field("n_features", low=0, above=True),
    }
    statistic = Moments

    def __init__(self, normalize: bool = False) -> None:
        self.normalize = normalize

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

"""Subtract the mean."""

from __future__ import annotations

import numpy as np

from isotropy.checks import Array
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Invertible, SummedRepair
from isotropy.stats import Moments
from isotropy.stored import Field


class Center(Invertible, SummedRepair):
    r"""Subtract the mean of the rows: x - mean.

    Parameters
    ----------
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    statistic_ : Moments
        What it was fitted on.

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

    def __init__(self, normalize: bool = False) -> None:
        self.normalize = normalize

    def solve(self, statistic: Moments) -> None:
        self.mean_ = statistic.mean

    def apply(self, rows: Array, out: Array) -> None:
        out[:] = rows - like(self.mean_, rows)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = rows + like(self.mean_, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return np.eye(self.n_features_in_), -self.mean_

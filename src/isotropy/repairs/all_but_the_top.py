"""Subtract the mean and the dominant directions."""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
import scipy.linalg

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, IsotropyWarning
from isotropy.linalg import Floats, like
from isotropy.repairs.base import SummedRepair
from isotropy.stats import Moments
from isotropy.stored import Field

Side = Literal["top", "bottom"]
SIDES = ("top", "bottom")


class AllButTheTop(SummedRepair):
    r"""Subtract the mean, then the projections on the first principal components.

    y = x - mean; the result is y - sum_j (u_j.y) u_j over the D directions of most variance.

    Parameters
    ----------
    n_components : int or None
        D; None is ceil(n_features / 100). Zero only centres. At most n_features - 1.
    side : {"top", "bottom"}
        "bottom" removes the D directions of least variance instead.
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    components_ : array of shape (n_removed, n_features)
        Removed directions. Directions without variance are never removed, nor is the last one
        with variance, so there may be fewer than `n_components`.
    statistic_ : Moments
        What it was fitted on.

    Notes
    -----
    Eq. 9 to 11 of [1]_, where the centred vector is projected. Differs from [2]_, where the
    uncentred one is. Affine.

    References
    ----------
    .. [1] Bis, Podkorytov and Liu, Too much in common, 2021.
    .. [2] Mu and Viswanath, All-but-the-top, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[9.0, 1.0], [-9.0, 1.0], [9.0, 3.0], [-9.0, 3.0]])
    >>> AllButTheTop(1).fit_transform(X) + 0.0
    array([[ 0., -1.], [ 0., -1.], [ 0., 1.], [ 0., 1.]])
    """

    name = "all-but-the-top"
    learned = {
        "mean_": Field("n_features"),
        "components_": Field("n_removed, n_features", orthonormal=True),
    }
    statistic = Moments

    def __init__(
        self, n_components: int | None = None, side: Side = "top", normalize: bool = False
    ) -> None:
        self.n_components = n_components
        self.side = side
        self.normalize = normalize

    def _check_params(self) -> None:
        super()._check_params()
        checks.choice(self.side, "side", SIDES)
        if self.n_components is not None:
            checks.integer(self.n_components, "n_components", 0)

    def _check_fitted(self) -> None:
        expect_removed(len(self.components_), self.n_components, self.n_features_in_)

    def solve(self, statistic: Moments) -> None:
        name = type(self).__name__
        n_removed = n_directions(self.n_components, self.n_features_in_, name)
        self.mean_ = statistic.mean
        self.components_ = directions(statistic, n_removed, self.side)

    def apply(self, rows: Array, out: Array) -> None:
        remove(rows, like(self.mean_, rows), like(self.components_, rows), out)

    def affine_form(self) -> tuple[Floats, Floats]:
        A = np.eye(self.n_features_in_) - self.components_.T @ self.components_
        return A, -A @ self.mean_


def n_directions(n_components: int | None, n_features: int, name: str) -> int:
    """How many directions the repair of that name removes: ceil(d/100) for None, at most d - 1."""
    if n_components is None:
        return min(math.ceil(n_features / 100), n_features - 1)
    wanted = checks.integer(n_components, "n_components", 0)
    if wanted >= n_features:
        warnings.warn(
            f"{name}: n_components={wanted} would leave nothing of {n_features} features; only "
            f"{n_features - 1} directions are removed.",
            IsotropyWarning,
            stacklevel=5,
        )
    return min(wanted, n_features - 1)


def expect_removed(n_removed: int, n_components: int | None, n_features: int) -> None:
    """Raise if a file holds more directions than its parameters ask for."""
    asked = math.ceil(n_features / 100) if n_components is None else n_components
    most = min(asked, n_features - 1)
    if n_removed > most:
        raise InputError(f"components_ must have at most {most} directions, got {n_removed}")


def directions(moments: Moments, n_components: int, side: str) -> Floats:
    """Principal directions to remove, as rows of a matrix; possibly fewer than asked for.

    Directions without variance are left out, and so is the last one with variance: removing it
    would turn every row into zero.
    """
    scatter = moments.at_unit_scale.scatter
    d = len(scatter)
    if n_components == 0:
        return np.zeros((0, d))
    ends = (d - n_components, d - 1) if side == "top" else (0, d - 1)
    with linalg.threads_for(len(scatter)):
        values, vectors = scipy.linalg.eigh(scatter, subset_by_index=ends, check_finite=False)
    trace = float(np.trace(scatter))
    noise = max(d * float(np.finfo(np.float64).eps), 4 * moments.resolution / d**0.5) * trace
    varying = np.flatnonzero(values > noise)
    if side == "top":
        varying = varying[::-1]
    removed = varying[:n_components]
    if len(removed) and trace - float(values[removed].sum()) <= noise:
        removed = removed[:-1]
    return vectors[:, removed].T


def remove(rows: Array, mean: Array, components: Array, out: Array) -> None:
    """Write rows - mean to out, without their projections on the components."""
    out[:] = rows - mean
    if components.shape[0]:
        out -= (out @ components.T) @ components

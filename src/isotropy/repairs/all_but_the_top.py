"""Subtract the mean and the dominant directions."""

from __future__ import annotations

import numpy as np

from isotropy import checks
from isotropy.checks import Array
from isotropy.linalg import Floats, like
from isotropy.repairs.base import SummedRepair
from isotropy.repairs.cluster_removal import (
    SIDES,
    Side,
    directions,
    expect_removed,
    n_directions,
    remove,
)
from isotropy.stats import Moments
from isotropy.stored import Field


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
        Removed directions. A direction without variance is never removed, nor is the last one
        that has some, so fewer may go than were asked for.
    statistic_ : Moments
        What it was fitted on.

    Notes
    -----
    Eq. 9 to 11 of [1]_, which projects the centred vector. Differs from [2]_, which projects
    the uncentred one. Affine.

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

    def _solve(self, statistic: Moments) -> None:
        n_removed = n_directions(self.n_components, self.n_features_in_)
        self.mean_ = statistic.mean
        self.components_ = directions(statistic, n_removed, self.side)

    def _apply(self, rows: Array, out: Array) -> None:
        remove(rows, like(self.mean_, rows), like(self.components_, rows), out)

    def _affine(self) -> tuple[Floats, Floats]:
        A = np.eye(self.n_features_in_) - self.components_.T @ self.components_
        return A, -A @ self.mean_

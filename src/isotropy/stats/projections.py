"""Products of rows with a few directions, in float64 throughout."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.fields import Field
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic


class Projections(Statistic):
    r"""Sums over rows of what lies along a few directions, and of what is left.

    With y = x / 2^exponent - center, z = B'y the coordinates along the columns of B, and
    r = y - B z, these are `products` = sum w z z', `cross` = sum w z r' and `rest` = sum w ||r||^2.

    Parameters
    ----------
    basis : array of shape (n_features, n_directions)
        Unit vectors as columns.
    center : array of shape (n_features,), optional
        Subtracted from every row.
    exponent : int
        Rows are divided by two to this power first.

    Notes
    -----
    The squares of small coordinates, which drown in the rounding of X'X, are summed here by
    themselves: they are right to the rounding of the rows times the directions.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[3.0, 1e-9], [4.0, -1e-9]])
    >>> found = Projections(np.array([[0.0], [1.0]])).update(rows)
    >>> found.products, found.cross, float(found.rest)
    (array([[2.e-18]]), array([[-1.e-09,  0.e+00]]), 25.0)
    """

    fields = {
        "basis": Field("n_features, n_directions"),
        "center": Field("n_features", optional=True),
        "exponent": Field(kind="int", low=-1200, high=1200),
        "weight": Field(low=0),
        "products": Field("n_directions, n_directions"),
        "cross": Field("n_directions, n_features"),
        "rest": Field(low=0),
    }
    weighted = ("weight", "products", "cross", "rest")

    def __init__(self, basis: Array, center: Array | None = None, exponent: int = 0) -> None:
        self.basis: Floats = np.asarray(basis, dtype=np.float64)
        if self.basis.ndim != 2:
            raise InputError(f"Projections: basis must be 2D, got {self.basis.ndim}D.")
        self.center = None if center is None else np.asarray(center, dtype=np.float64)
        self.exponent = exponent
        self.weight = 0.0
        self.products: Array = np.zeros((self.basis.shape[1],) * 2)
        self.cross: Array = np.zeros(self.basis.shape[::-1])
        self.rest: Array = 0.0

    def empty(self) -> Self:
        return type(self)(self.basis, self.center, self.exponent)

    @property
    def n_features(self) -> int | None:
        return int(self.basis.shape[0])

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        basis = linalg.place(self.basis, X)
        center = None if self.center is None else linalg.place(self.center, X)
        for name in ("products", "cross"):
            setattr(self, name, linalg.place(getattr(self, name), X))
        for _, rows, weight in linalg.blocks(X, w, on_device=4):  # some copies in float64 each
            Y = linalg.scaled(double(rows), self.exponent)
            if center is not None:
                Y = Y - center
            Z = Y @ basis
            R = Y - Z @ basis.T
            heavy = Z if weight is None else Z * weight[:, None]
            radius = linalg.squared_norms(R)
            self.products = self.products + heavy.T @ Z
            self.cross = self.cross + heavy.T @ R
            self.rest = self.rest + (radius.sum() if weight is None else weight @ radius)
        self.weight += float(X.shape[0] if w is None else w.sum())

    def _expect_same_settings(self, other: Self) -> None:
        same = np.array_equal(self.basis, other.basis) and self.exponent == other.exponent
        if self.center is None or other.center is None:
            same = same and self.center is other.center
        else:
            same = same and np.array_equal(self.center, other.center)
        if not same:
            raise InputError("Projections: other must have the same basis, centre and exponent.")

    def _merge(self, other: Projections) -> None:
        for name in ("products", "cross"):
            mine, theirs = (linalg.to_numpy(getattr(part, name)) for part in (self, other))
            setattr(self, name, mine + theirs)
        self.rest = float(self.rest) + float(other.rest)
        self.weight += other.weight

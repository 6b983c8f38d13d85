"""Products of rotated rows' signs with the rows: a step of iterative quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import LARGEST_TOTAL, Array
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic
from isotropy.stats.moments import EXACT_PRODUCTS
from isotropy.stored import Field


@public
class SignProducts(Statistic):
    r"""`products` = sum w b x' with b = sign(R'x), the signs of each rotated row; sign(0) is 1.

    Parameters
    ----------
    rotation : array of shape (n_features, n_features)
        R, by which rows are multiplied.

    Notes
    -----
    The products of float32 rows are made in float32 within a block and added in float64, except in
    updates of less than 2^31 multiply-adds.

    Examples
    --------
    >>> import numpy as np
    >>> found = SignProducts(np.eye(2)).update(np.array([[3.0, -1.0], [-2.0, -4.0]]))
    >>> found.products, found.length
    (array([[ 5., 3.], [-1., 5.]]), 10.0)
    """

    settings = ("rotation",)
    fields = {
        "rotation": Field("n_features, n_features"),
        "weight": Field(low=0, high=LARGEST_TOTAL),
        "products": Field("n_features, n_features"),
    }
    weighted = ("weight", "products")

    def __init__(self, rotation: Array) -> None:
        self.rotation: Floats = np.asarray(rotation, dtype=np.float64)
        if self.rotation.ndim != 2 or len(self.rotation) != self.rotation.shape[1]:
            raise InputError(f"rotation must be square, got shape {self.rotation.shape}.")
        self.weight = 0.0
        self.products: Array = np.zeros_like(self.rotation)

    @property
    def length(self) -> float:
        """Sum of w ||R'x||_1: how long the rotated rows are along their signs."""
        return float(np.vdot(self.rotation.T, linalg.to_numpy(self.products)))

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        xp = linalg.namespace(X)
        exact = X.shape[0] * X.shape[1] ** 2 < EXACT_PRODUCTS
        self.products = linalg.place(self.products, X)
        for _, rows, weight in linalg.blocks(X, w):
            rows = double(rows) if exact else rows
            signs = rows @ linalg.like(self.rotation, rows)
            xp.copysign(xp.ones_like(signs[:1]), signs, out=signs)
            if weight is not None:
                signs *= linalg.like(weight, rows)[:, None]
            self.products = self.products + double(signs.T @ rows)
        self.weight += float(X.shape[0] if w is None else w.sum())

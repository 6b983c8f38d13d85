"""Sums of unit rows and of norms: what cosines need."""

from __future__ import annotations

import math
from typing import Any, Self

from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.linalg import double
from isotropy.stats.base import Statistic


class Directions(Statistic):
    r"""Sums over unit rows u = x / ||x||, and the sum, minimum and maximum of norms.

    `unit_sum` is sum w u and `unit_square_sum` sum w^2 u^2 for every dimension; `weight` and
    `squared_weight` are sum w and sum w^2 over the same rows. Zero rows have no direction: they
    are counted in `zero_rows` and are in the norms, but in none of the sums over u.

    Examples
    --------
    >>> import numpy as np
    >>> directions = Directions().update(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]))
    >>> directions.unit_sum, directions.zero_rows, directions.norm_sum
    (array([0.6, 1.8]), 1, 7.0)
    """

    fields = (
        "weight",
        "squared_weight",
        "unit_sum",
        "unit_square_sum",
        "zero_rows",
        "zero_weight",
        "norm_sum",
        "norm_min",
        "norm_max",
    )

    def __init__(self) -> None:
        self.weight = self.squared_weight = self.zero_weight = self.norm_sum = 0.0
        self.zero_rows = 0
        self.norm_min, self.norm_max = math.inf, -math.inf
        self.unit_sum: Array | None = None
        self.unit_square_sum: Array | None = None

    def empty(self) -> Self:
        return type(self)()

    @property
    def n_features(self) -> int | None:
        return None if self.unit_sum is None else int(self.unit_sum.shape[0])

    @property
    def mean_norm(self) -> float:
        """Weighted mean of the norms, zero rows included."""
        return self.norm_sum / (self.weight + self.zero_weight)

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: int) -> None:
        if self.unit_sum is None:
            self.unit_sum = linalg.zeros(X.shape[1], X)
            self.unit_square_sum = linalg.zeros(X.shape[1], X)
        self.unit_sum = linalg.place(self.unit_sum, X)
        self.unit_square_sum = linalg.place(self.unit_square_sum, X)
        for _, rows, weight in linalg.blocks(X, w):
            self._add(rows, weight)

    def _add(self, rows: Array, w: Array | None) -> None:
        xp = linalg.namespace(rows)
        squares = rows * rows
        norms = xp.sqrt(squares @ xp.ones_like(rows[0]))
        seen = norms > 0
        if w is None:
            w = xp.ones_like(norms)
        inverse = xp.where(seen, 1 / xp.where(seen, norms, xp.ones_like(norms)), 0 * norms)
        self.unit_sum += linalg.column_sums(rows, w * inverse)
        self.unit_square_sum += linalg.column_sums(squares, (w * inverse) ** 2)
        kept = double(xp.where(seen, w, 0 * w))
        self.weight += float(kept.sum())
        self.squared_weight += float(kept @ kept)
        self.zero_rows += int((~seen).sum())
        self.zero_weight += float(double(w).sum() - kept.sum())
        self.norm_sum += float(double(w) @ double(norms))
        self.norm_min = min(self.norm_min, float(norms.min()))
        self.norm_max = max(self.norm_max, float(norms.max()))

    def _merge(self, other: Directions) -> None:
        if self.unit_sum is None:
            self.unit_sum = self.unit_square_sum = 0.0
        self.unit_sum = linalg.to_numpy(self.unit_sum) + linalg.to_numpy(other.unit_sum)
        self.unit_square_sum = linalg.to_numpy(self.unit_square_sum) + linalg.to_numpy(
            other.unit_square_sum
        )
        for name in ("weight", "squared_weight", "zero_weight", "norm_sum", "zero_rows"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.norm_min = min(self.norm_min, other.norm_min)
        self.norm_max = max(self.norm_max, other.norm_max)

"""Sums of unit rows and of norms: what cosines need."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.fields import HALF_THE_DIGITS, Field
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

    fields = {
        "totals": Field("5", low=0),
        "extremes": Field("2", infinite=True),
        "unit_sum": Field("n_features", optional=True),
        "unit_square_sum": Field("n_features", optional=True, low=0),
    }

    def __init__(self) -> None:
        self.totals: Array = np.zeros(5)
        self.extremes: Array = np.array([np.inf, -np.inf])
        self.unit_sum: Array | None = None
        self.unit_square_sum: Array | None = None

    def empty(self) -> Self:
        return type(self)()

    @property
    def n_features(self) -> int | None:
        return None if self.unit_sum is None else int(self.unit_sum.shape[0])

    @property
    def weight(self) -> float:
        """Sum of w over rows that are not zero."""
        return float(self.totals[0])

    @property
    def squared_weight(self) -> float:
        """Sum of w^2 over rows that are not zero."""
        return float(self.totals[1])

    @property
    def zero_weight(self) -> float:
        """Sum of w over zero rows."""
        return float(self.totals[2])

    @property
    def norm_sum(self) -> float:
        """Sum of w ||x||."""
        return float(self.totals[3])

    @property
    def norm_min(self) -> float:
        """Least norm."""
        return float(self.extremes[0])

    @property
    def norm_max(self) -> float:
        """Largest norm."""
        return float(self.extremes[1])

    @property
    def zero_rows(self) -> int:
        """Number of zero rows."""
        return int(self.totals[4])

    @property
    def mean_norm(self) -> float:
        """Weighted mean of the norms, zero rows included."""
        return self.norm_sum / (self.weight + self.zero_weight)

    def _check_state(self) -> None:
        seen = self._expect_together("unit_sum", "unit_square_sum")
        low, high = self.norm_min, self.norm_max
        if seen != (self.weight + self.zero_weight > 0):
            raise InputError("totals and sums must be of the same rows, got others")
        if not (0 <= low <= high < np.inf if seen else (low, high) == (np.inf, -np.inf)):
            raise InputError(f"extremes must be norms of the rows, got {low:g} and {high:g}")
        with np.errstate(over="ignore"):
            length = np.linalg.norm(np.asarray(self.unit_sum)) if seen else 0.0
        if length > self.weight * (1 + HALF_THE_DIGITS):
            raise InputError("unit_sum must be a sum of unit rows, got a longer one")

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        if self.unit_sum is None:
            self.unit_sum = self.unit_square_sum = linalg.zeros(X.shape[1], X)
        for name in self.fields:
            setattr(self, name, linalg.place(getattr(self, name), X))
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
        self.unit_sum = self.unit_sum + linalg.column_sums(rows, w * inverse)
        self.unit_square_sum = self.unit_square_sum + linalg.column_sums(
            squares, (w * inverse) ** 2
        )
        w, norms = double(w), double(norms)
        kept = xp.where(seen, w, 0 * w)
        sums = (kept.sum(), kept @ kept, (w - kept).sum(), w @ norms, double(~seen).sum())
        self.totals = self.totals + xp.stack(sums)
        low, high = self.extremes[0], self.extremes[1]
        self.extremes = xp.stack((xp.minimum(low, norms.min()), xp.maximum(high, norms.max())))

    def _merge(self, other: Directions) -> None:
        theirs = other.state()
        mine = {name: np.zeros_like(value) for name, value in theirs.items()} | self.state()
        for name in ("totals", "unit_sum", "unit_square_sum"):
            setattr(self, name, mine[name] + theirs[name])
        (low, high), (other_low, other_high) = mine["extremes"], theirs["extremes"]
        self.extremes = np.array([min(low, other_low), max(high, other_high)])

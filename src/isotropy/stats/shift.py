"""What `shift` gathers of new rows: moments of alternate stripes, and the weight of outliers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.stats.base import Statistic
from isotropy.stats.moments import Moments
from isotropy.stored import HALF_THE_DIGITS, Field


class StripedMoments(Moments):
    """Moments of every other stripe of `height` rows, from the first (0) or second (1) on."""

    numbers_rows = True
    fields = {
        "height": Field(kind="int", low=1),
        "start": Field(kind="int", low=0, high=1),
        **Moments.fields,
    }

    def __init__(self, height: int, start: int, origin: Array | None = None) -> None:
        super().__init__(origin)
        self.height = height
        self.start = start

    def empty(self) -> Self:
        return type(self)(self.height, self.start, self.origin)

    def settled(self, rows: Array) -> Self:
        return type(self)(self.height, self.start, Moments(self.origin).settled(rows).origin)

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        numbers = first_row + np.arange(X.shape[0]) if np.ndim(first_row) == 0 else first_row
        mine = numbers // self.height % 2 == self.start
        rows = np.flatnonzero(mine if w is None else mine & (w > 0))
        if len(rows):
            weights = None if w is None else w[rows]
            super()._update(X[linalg.index(rows, X)], weights, first_row)


class Outliers(Statistic):
    """Weight of the rows whose distance from a centre is above a bound."""

    fields = {
        "center": Field("n_features"),
        "bound": Field(low=0, infinite=True),
        "weight": Field(low=0),
        "outside": Field(low=0),
    }
    weighted = ("weight", "outside")

    def __init__(self, center: Array, bound: float) -> None:
        self.center: Floats = np.asarray(center, dtype=np.float64)
        self.bound = bound
        self.weight = 0.0
        self.outside = 0.0

    def empty(self) -> Self:
        return type(self)(self.center, self.bound)

    @property
    def n_features(self) -> int | None:
        return len(self.center)

    def _check_state(self) -> None:
        if self.outside > self.weight * (1 + HALF_THE_DIGITS):
            raise InputError(f"outside must be a part of weight {self.weight:g}, got more")

    @property
    def share(self) -> float:
        """Share of the weight that is outside."""
        return self.outside / self.weight

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        center = linalg.like(self.center, X)
        for _, rows, weight in linalg.blocks(X, w):
            outside = linalg.double(linalg.lengths(rows - center) > self.bound)
            self.outside += float(outside.sum() if weight is None else outside @ weight)
        self.weight += float(X.shape[0] if w is None else w.sum())

    def _merge(self, other: Outliers) -> None:
        self.weight += other.weight
        self.outside += other.outside

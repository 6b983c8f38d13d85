"""Logarithms of the partition function along given directions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.errors import InputError
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic


class LogPartition(Statistic):
    r"""log sum_w exp(u.w) and log sum_w exp(-u.w) for every column u of a basis.

    Parameters
    ----------
    basis : array of shape (n_features, n_directions)
        Unit vectors as columns.
    center : array of shape (n_features,), optional
        Subtracted from every row.

    Notes
    -----
    A block is shifted by the middle of each column's range, which brings exp(+) and its
    reciprocal exp(-) into the range of the dtype with one exponential; only a block that is too
    wide for that takes two. Sums of blocks are joined by logaddexp, so that no value overflows.

    Examples
    --------
    >>> import numpy as np
    >>> partition = LogPartition(np.eye(2)).update(np.array([[1000.0, 0.0], [1000.0, 0.0]]))
    >>> partition.log_plus, partition.log_minus
    (array([1.00069315e+03, 6.93147181e-01]), array([-9.99306853e+02, 6.93147181e-01]))
    """

    fields = ("basis", "center", "weight", "log_plus", "log_minus")

    def __init__(self, basis: Array, center: Array | None = None) -> None:
        self.basis: Floats = np.asarray(basis, dtype=np.float64)
        if self.basis.ndim != 2:
            raise InputError(f"LogPartition: basis must be 2D, got {self.basis.ndim}D.")
        self.center = None if center is None else np.asarray(center, dtype=np.float64)
        self.weight = 0.0
        self.log_plus: Floats = np.full(self.basis.shape[1], -np.inf)
        self.log_minus: Floats = np.full(self.basis.shape[1], -np.inf)

    def empty(self) -> Self:
        return type(self)(self.basis, self.center)

    @property
    def n_features(self) -> int | None:
        return int(self.basis.shape[0])

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: int) -> None:
        basis = linalg.like(self.basis, X)
        near, rest = None, np.zeros(self.basis.shape[1])
        if self.center is not None:  # rounded to the rows' dtype; the rest of it is added later
            near = linalg.like(self.center, X)
            rest = (self.center - linalg.to_numpy(double(near))) @ self.basis
        xp, room = linalg.namespace(X), None
        for _, rows, weight in linalg.blocks(X, w):
            if room is None or room.shape[0] != rows.shape[0]:
                room = linalg.empty((rows.shape[0], basis.shape[1]), X)
            scores = xp.matmul(rows if near is None else rows - near, basis, out=room)
            self._add(scores, weight, rest)
        self.weight += float(X.shape[0] if w is None else w.sum())

    def _add(self, scores: Array, w: Array | None, rest: Floats) -> None:
        xp = linalg.namespace(scores)
        high, low = xp.max(scores, axis=0), xp.min(scores, axis=0)
        limit = 0.8 * float(np.log(float(xp.finfo(scores.dtype).max)))
        if float((high - low).max()) < 2 * limit:
            high = low = (high + low) / 2
            scores -= high
            xp.exp(scores, out=scores)
            plus = _log_sum(scores, w)
            minus = _log_sum(xp.reciprocal(scores, out=scores), w)
        else:
            plus, minus = _log_sum(xp.exp(scores - high), w), _log_sum(xp.exp(low - scores), w)
        above, below = (linalg.to_numpy(double(shift)) - rest for shift in (high, low))
        self.log_plus = np.logaddexp(self.log_plus, plus + above)
        self.log_minus = np.logaddexp(self.log_minus, minus - below)

    def _expect_same_settings(self, other: Self) -> None:
        same = np.array_equal(self.basis, other.basis) and (
            np.array_equal(self.center, other.center)
            if self.center is not None and other.center is not None
            else self.center is other.center
        )
        if not same:
            raise InputError("LogPartition: other must have the same basis and centre.")

    def _merge(self, other: LogPartition) -> None:
        self.log_plus = np.logaddexp(self.log_plus, other.log_plus)
        self.log_minus = np.logaddexp(self.log_minus, other.log_minus)
        self.weight += other.weight


def _log_sum(terms: Array, w: Array | None) -> Floats:
    with np.errstate(divide="ignore"):  # rows of no weight sum to log 0
        logs: Floats = np.log(linalg.to_numpy(linalg.column_sums(terms, w)))
    return logs

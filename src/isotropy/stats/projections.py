"""Projections of rows on given directions, and the partition function along them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import LARGEST_TOTAL, Array, is_tensor
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic
from isotropy.stored import Field

WIDE = 2.0**10  # norms past which float32 rows are multiplied in float64


class _AlongBasis(Statistic):
    fields = {
        "basis": Field("n_features, n_directions"),
        "center": Field("n_features", optional=True),
    }

    def __init__(self, basis: Array, center: Array | None) -> None:
        self.basis: Floats = np.asarray(basis, dtype=np.float64)
        if self.basis.ndim != 2:
            raise InputError(f"basis must be 2D, got {self.basis.ndim}D.")
        self.center = None if center is None else np.asarray(center, dtype=np.float64)
        self.weight = 0.0


@public
class LogPartition(_AlongBasis):
    r"""log sum_w exp(u.w) and log sum_w exp(-u.w) for every column u of a basis.

    Parameters
    ----------
    basis : array of shape (n_features, n_directions)
        Unit vectors as columns.
    center : array of shape (n_features,), optional
        Subtracted from every row.
    largest_norm : float, optional
        No row, after `center`, is longer. Then no product u.w is larger either, and where that is
        within the range of exp, blocks need no shift; where it is above 1,024, float32 rows are
        multiplied in float64, which keeps the digits that exp needs.

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

    settings = ("basis", "center", "largest_norm")
    fields = {
        **_AlongBasis.fields,
        "largest_norm": Field(optional=True, low=0),
        "weight": Field(low=0, high=LARGEST_TOTAL),
        "log_plus": Field("n_directions", infinite=True),
        "log_minus": Field("n_directions", infinite=True),
        "resolution": Field(low=0, high=1, optional=True),
    }
    weighted = ("weight", "log_plus", "log_minus")  # see _multiply
    _basis_there: Array | None = None

    def __init__(
        self, basis: Array, center: Array | None = None, largest_norm: float | None = None
    ) -> None:
        super().__init__(basis, center)
        self.largest_norm = largest_norm
        self.resolution = 0.0
        self.log_plus: Array = np.full(self.basis.shape[1], -np.inf)
        self.log_minus: Array = np.full(self.basis.shape[1], -np.inf)

    def _check_state(self) -> None:
        self.resolution = self.resolution or 0.0
        for name in ("log_plus", "log_minus"):
            logs = getattr(self, name)
            if not (np.isfinite(logs) if self.weight > 0 else logs == -np.inf).all():
                raise InputError(f"weight and {name} must be of the same rows, got others")

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        xp = linalg.namespace(X)
        wide = self.largest_norm is not None and self.largest_norm > WIDE
        self.log_plus = linalg.place(self.log_plus, X)
        self.log_minus = linalg.place(self.log_minus, X)
        given = double(X[:1]) if wide else X[:1]  # of the dtype in which to multiply
        basis = self._basis_like(given)
        near, rest = None, linalg.zeros(self.basis.shape[1], X)
        if self.center is not None:  # rounded to the rows' dtype; the rest of it is added later
            near = linalg.like(self.center, given)
            left_out = self.center - linalg.to_numpy(double(near))
            rest = linalg.place(left_out @ self.basis, X)
        with np.errstate(over="ignore", invalid="ignore"):
            for _, rows, weight in linalg.blocks(X, w):
                rows = double(rows) if wide else rows
                scores = linalg.room((rows.shape[0], basis.shape[1]), rows, "scores")
                rows = rows if near is None else linalg.shifted(rows, near)
                scores = xp.matmul(rows, basis, out=scores)
                self._add(scores, weight, rest)
        self.weight += float(X.shape[0] if w is None else w.sum())
        self.resolution = max(self.resolution, float(xp.finfo(given.dtype).eps))

    def _basis_like(self, rows: Array) -> Array:
        """The basis beside the rows: copied to a device once, as copies of rows are in its way."""
        if not is_tensor(rows):
            return linalg.like(self.basis, rows)
        there = self._basis_there
        if there is None or (there.dtype, there.device) != (rows.dtype, rows.device):
            self._basis_there = there = linalg.like(self.basis, rows)
        return there

    def to_host(self) -> Self:
        self._basis_there = None
        return super().to_host()

    def _add(self, scores: Array, w: Array | None, rest: Array) -> None:
        xp = linalg.namespace(scores)
        limit = 0.7 * float(np.log(float(xp.finfo(scores.dtype).max)))
        high = low = 0 * rest
        middle, one_exponential = None, True
        if self.largest_norm is None or self.largest_norm >= limit:
            high, low = xp.max(scores, axis=0), xp.min(scores, axis=0)
            one_exponential = float((high - low).max()) < 2 * limit
            if one_exponential:
                middle = high = low = (high + low) / 2
        if one_exponential and w is None:
            plus, minus = map(xp.log, linalg.exp_sums(scores, middle))
        elif one_exponential:
            scores = scores if middle is None else scores - middle
            plus = _log_sum(xp.exp(scores, out=scores), w)
            minus = _log_sum(xp.reciprocal(scores, out=scores), w)
        else:
            plus, minus = _log_sum(xp.exp(scores - high), w), _log_sum(xp.exp(low - scores), w)
        self.log_plus = xp.logaddexp(self.log_plus, plus + double(high) - rest)
        self.log_minus = xp.logaddexp(self.log_minus, minus - double(low) + rest)

    def _multiply(self, factor: float) -> None:
        self.weight *= factor
        self.log_plus = self.log_plus + float(np.log(factor))
        self.log_minus = self.log_minus + float(np.log(factor))

    def _merge(self, other: LogPartition) -> None:
        for name in ("log_plus", "log_minus"):
            mine, theirs = (linalg.to_numpy(getattr(part, name)) for part in (self, other))
            setattr(self, name, np.logaddexp(mine, theirs))
        self.weight += other.weight
        self.resolution = max(self.resolution, other.resolution)


def _log_sum(terms: Array, w: Array | None) -> Array:
    xp = linalg.namespace(terms)
    if w is None:
        return xp.log(linalg.column_sums(terms))
    most = xp.max(w)  # weights of any size stay in the range of the dtype
    sums = linalg.column_sums(terms, linalg.like(w / most, terms))
    return xp.log(sums) + xp.log(double(most))


@public
class Projections(_AlongBasis):
    r"""Sums over rows of what lies along a few directions, and of what is left.

    With y = x / 2^exponent - center, z = B'y the coordinates along the columns of B, and
    r = y - B z, these are `products` = sum w z z', `cross` = sum w z r' and `rest` = sum w ||r||^2.

    Parameters
    ----------
    basis, center
        As for `LogPartition`.
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

    settings = ("basis", "center", "exponent")
    fields = {
        **_AlongBasis.fields,
        "exponent": Field(kind="int", low=-1200, high=1200),
        "weight": Field(low=0, high=LARGEST_TOTAL),
        "products": Field("n_directions, n_directions"),
        "cross": Field("n_directions, n_features"),
        "rest": Field(low=0),
    }
    weighted = ("weight", "products", "cross", "rest")

    def __init__(self, basis: Array, center: Array | None = None, exponent: int = 0) -> None:
        super().__init__(basis, center)
        self.exponent = exponent
        self.products: Array = np.zeros((self.basis.shape[1],) * 2)
        self.cross: Array = np.zeros(self.basis.shape[::-1])
        self.rest: Array = 0.0

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

"""Sums of unit rows and of norms: what cosines need."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import kernels, linalg
from isotropy.checks import LARGEST_TOTAL, Array, is_tensor
from isotropy.errors import InputError, public
from isotropy.linalg import double
from isotropy.stats.base import Statistic
from isotropy.stored import HALF_THE_DIGITS, Field

EXACT_FEATURES = 16  # features up to which float32 rows are summed in float64 throughout
EXACT_ELEMENTS = 1 << 21  # numbers up to which they are too
ON_DEVICE = 64  # times as many rows are in a block on a device, which copies them
UNCOPIED = 1024  # and as many if a kernel reads them in place
USUAL_NORMS = 500  # norms between 2^-500 and 2^500 are summed as they are


def summed_exactly(n_samples: int, n_features: int) -> bool:
    """Whether float32 rows are summed in float64 throughout."""
    return n_features <= EXACT_FEATURES or n_samples * n_features <= EXACT_ELEMENTS


def _entry(array: str, place: int, doc: str) -> Any:
    return property(lambda self: float(getattr(self, array)[place]), doc=doc)


@public
class Directions(Statistic):
    r"""Sums over unit rows u = x / ||x||, and the sum, minimum and maximum of norms.

    `unit_sum` is sum w u and `unit_square_sum` sum w^2 u^2 for every dimension; `weight` and
    `squared_weight` are sum w and sum w^2 over the same rows. Zero rows have no direction: they
    are counted in `zero_rows` and are in the norms, but in none of the sums over u.

    Parameters
    ----------
    exact : bool, optional
        Whether float32 rows are summed in float64 throughout; by default those of up to 16
        dimensions, and updates, or passes over rows, of at most 2^21 numbers.

    Notes
    -----
    Rows whose squares would leave the range of their dtype are divided by a power of two each, so
    that directions do not depend on scale. The sum of norms is one of norms over 2^`exponent`.
    Sums are float64; unless `exact`, those of float32 rows are made in float32 for 256 rows at a
    time.

    Examples
    --------
    >>> import numpy as np
    >>> directions = Directions().update(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]))
    >>> directions.unit_sum, directions.zero_rows, directions.norm_sum
    (array([0.6, 1.8]), 1, 7.0)
    """

    needs_rows = True
    settings = ("exact",)
    fields = {
        "exact": Field(kind="int", low=0, high=1, optional=True),
        "totals": Field("5", low=0),
        "exponent": Field(kind="int", low=-2200, high=2200, optional=True),
        "extremes": Field("2", infinite=True),
        "unit_sum": Field("n_features", optional=True),
        "unit_square_sum": Field("n_features", optional=True, low=0),
        "resolution": Field(low=0, high=1, optional=True),
    }
    weighted = ("totals", "unit_sum", "unit_square_sum")  # see _multiply

    def __init__(self, exact: bool | None = None) -> None:
        self.exact = None if exact is None else int(exact)
        self.totals: Array = np.zeros(5)
        self.exponent = 0
        self.resolution = 0.0
        self.extremes: Array = np.array([np.inf, -np.inf])
        self.unit_sum: Array | None = None
        self.unit_square_sum: Array | None = None

    weight: float = _entry("totals", 0, "Sum of w over rows that are not zero.")
    squared_weight: float = _entry("totals", 1, "Sum of w^2 over rows that are not zero.")
    zero_weight: float = _entry("totals", 2, "Sum of w over zero rows.")
    norm_min: float = _entry("extremes", 0, "Least norm.")
    norm_max: float = _entry("extremes", 1, "Largest norm.")

    @property
    def norm_sum(self) -> float:
        """Sum of w ||x||; infinite where that is too much for a float."""
        with np.errstate(over="ignore"):
            return float(linalg.scaled(np.float64(self.totals[3]), -self.exponent))

    @property
    def zero_rows(self) -> int:
        """Number of zero rows."""
        return int(self.totals[4])

    @property
    def mean_norm(self) -> float:
        """Weighted mean of the norms, zero rows included."""
        with np.errstate(over="ignore"):
            return float(linalg.scaled(np.float64(self.scaled_mean_norm), -self.exponent))

    @property
    def scaled_mean_norm(self) -> float:
        """The mean norm over 2^exponent."""
        return float(self.totals[3]) / (self.weight + self.zero_weight)

    def _check_state(self) -> None:
        self.exponent = self.exponent or 0  # earlier versions have neither
        self.resolution = self.resolution or 0.0
        seen = self._expect_together("unit_sum", "unit_square_sum")
        low, high = self.norm_min, self.norm_max
        if seen != (self.weight + self.zero_weight > 0):
            raise InputError("totals and sums must be of the same rows, got others")
        if max(self.weight, self.zero_weight) > LARGEST_TOTAL:
            raise InputError(
                f"totals must be of weights of at most {LARGEST_TOTAL:g} together, got "
                f"{max(self.weight, self.zero_weight):g}"
            )
        if not (0 <= low <= high < np.inf if seen else (low, high) == (np.inf, -np.inf)):
            raise InputError(f"extremes must be norms of the rows, got {low:g} and {high:g}")
        with np.errstate(over="ignore"):
            length = np.linalg.norm(np.asarray(self.unit_sum)) if seen else 0.0
        if length > self.weight * (1 + HALF_THE_DIGITS):
            raise InputError("unit_sum must be a sum of unit rows, got a longer one")

    def settled(self, rows: Array, n_samples: int) -> Directions:
        if self.exact is not None:
            return self
        return Directions(summed_exactly(n_samples, int(rows.shape[1])))

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        xp = linalg.namespace(X)
        if self.unit_sum is None:
            self.unit_sum = self.unit_square_sum = linalg.zeros(X.shape[1], X)
        for name in ("totals", "extremes", "unit_sum", "unit_square_sum"):
            setattr(self, name, linalg.place(getattr(self, name), X))
        exact = summed_exactly(*X.shape) if self.exact is None else bool(self.exact)
        fused = w is None and not exact and kernels.fits_unit_sums(X)
        for _, rows, weight in linalg.blocks(X, w, on_device=UNCOPIED if fused else ON_DEVICE):
            rows = double(rows) if exact else rows
            weight = None if weight is None else linalg.like(weight, rows)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                self._add(rows, weight)
        kind = xp.float64 if exact else X.dtype
        self.resolution = max(self.resolution, float(xp.finfo(kind).eps))

    def _add(self, rows: Array, w: Array | None) -> None:
        xp = linalg.namespace(rows)
        found = linalg.unit_sums(rows, w)
        low, high = linalg.usual(rows)
        least, most = xp.stack((found[0].min(), found[0].max())).tolist()
        if low < least <= most < high:
            self._include(found, w, 0)
            return
        height = linalg.block_rows(rows.shape[1]) * (ON_DEVICE if is_tensor(rows) else 1)
        for part in linalg.slices(rows.shape[0], height):
            mine, exponents = None if w is None else w[part], linalg.row_exponents(rows[part])
            scaled = linalg.scaled(rows[part], exponents)
            self._include(linalg.unit_sums(scaled, mine), mine, exponents)

    def _include(self, found: tuple[Array, ...], w: Array | None, exponents: Any) -> None:
        """Add `unit_sums` of rows divided by 2^exponents, which are one for each row or for all."""
        norms, unit_sum, unit_square_sum = found
        xp = linalg.namespace(norms)
        self.unit_sum = self.unit_sum + unit_sum
        self.unit_square_sum = self.unit_square_sum + unit_square_sum
        seen = norms > 0
        w, norms = double(xp.ones_like(norms) if w is None else w), double(norms)
        kept = xp.where(seen, w, 0 * w)
        lengths = linalg.scaled(norms, -exponents)
        if isinstance(exponents, int) or bool(seen.any()):
            self._cover(exponents if isinstance(exponents, int) else int(exponents[seen].max()))
        norms = linalg.scaled(norms, self.exponent - exponents) if self.exponent else lengths
        sums = (kept.sum(), kept @ kept, (w - kept).sum(), w @ norms, double(~seen).sum())
        self.totals = self.totals + xp.stack(sums)
        low, high = self.extremes[0], self.extremes[1]
        self.extremes = xp.stack((xp.minimum(low, lengths.min()), xp.maximum(high, lengths.max())))

    def _cover(self, exponent: int) -> None:
        """Sum norms over a power of two, where 2^exponent may be too much or too little."""
        wanted = exponent if abs(exponent) > USUAL_NORMS else 0
        if wanted == self.exponent:
            return
        if self.norm_max > 0:
            wanted = max(wanted, self.exponent)
        totals = linalg.to_numpy(self.totals).copy()
        totals[3] = linalg.scaled(totals[3], wanted - self.exponent)
        self.totals, self.exponent = linalg.place(totals, self.totals), wanted

    def _multiply(self, factor: float) -> None:
        factors = np.array([factor, factor**2, factor, factor, 1.0])
        self.totals = self.totals * linalg.place(factors, self.totals)
        assert self.unit_sum is not None
        assert self.unit_square_sum is not None
        self.unit_sum = self.unit_sum * factor
        self.unit_square_sum = self.unit_square_sum * factor**2

    def _expect_same_settings(self, other: Self) -> None:
        """Sums of any precision will do."""

    def _merge(self, other: Directions) -> None:
        self.to_host()
        theirs = other.state()
        if self.n_features is None:
            self.unit_sum = self.unit_square_sum = np.zeros_like(theirs["unit_sum"])
        if other.norm_max > 0:
            self._cover(other.exponent)
        theirs["totals"][3] = linalg.scaled(theirs["totals"][3], self.exponent - other.exponent)
        for name in ("totals", "unit_sum", "unit_square_sum"):
            setattr(self, name, getattr(self, name) + theirs[name])
        (low, high), (other_low, other_high) = self.extremes, theirs["extremes"]
        self.extremes = np.array([min(low, other_low), max(high, other_high)])
        self.resolution = max(self.resolution, other.resolution)

"""Weight, mean, scatter and the two radial sums that unbiased traces need."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import LARGEST_TOTAL, Array
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, double
from isotropy.stats.base import Statistic
from isotropy.stored import HALF_THE_DIGITS, Field

CANCELLED = 1e-12  # a variance below this part of its sum of squares is all rounding
EXACT_PRODUCTS = 1 << 31  # multiply-adds that may be spent on float64 products of float32 rows
FAR = 4  # energy about the origin over that about the mean, past which a block has its own origin
FARTHEST = 2.0**140  # from a row to others, over 2^exponent: more than any finite float32 rows have
LARGER_BLOCKS = 768  # features, at multiples of which they are larger: products take work to add
REACH = 20  # rows between 2^-20 and 2^20 are summed as they are, others times a power of two


@public
class Moments(Statistic):
    r"""Sums of 1, y y', ||y||^2 y and ||y||^4 with y = x - mean, over weighted rows.

    Parameters
    ----------
    origin : array of shape (n_features,), optional
        A point near the rows, about which blocks of them are summed; by default the mean of the
        first block.
    exact : bool, optional
        Whether products of float32 rows are made in float64; by default in updates, or in passes
        over rows, of less than 2^31 multiply-adds.

    Notes
    -----
    A block of rows is summed about the origin, or about its own mean where the origin is far from
    it, and blocks are joined by the formulas of Chan, Golub and LeVeque 1983. Their second moments
    are added and never subtracted, so the order of rows costs no digits.

    The sums are of rows divided by 2^`exponent`, which is zero unless rows are very large or very
    small, so no sum leaves the range of floats. They are float64. Products of float32 rows are made
    in float32 within a block (on 40,000 x 768 rows: right to 2e-9 of the trace, 5e-8 of an
    eigenvalue) unless `exact`. `resolution` is the coarser of the two that went in.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    >>> moments = Moments().update(rows[:1]).merge(Moments().update(rows[1:]))
    >>> moments.mean
    array([3., 5.])
    >>> moments.scatter
    array([[ 8., 14.], [14., 26.]])
    """

    needs_rows = True
    settings: ClassVar[tuple[str, ...]] = ("origin", "exact")
    fields = {
        "origin": Field("n_features", optional=True),
        "exact": Field(kind="int", low=0, high=1, optional=True),
        "near": Field("n_features", optional=True),
        "exponent": Field(kind="int", low=-1200, high=1200, optional=True),
        "n_rows": Field(kind="int", low=0),
        "weight": Field(low=0, high=LARGEST_TOTAL),
        "total": Field("n_features", optional=True),
        "within": Field("n_features, n_features", optional=True),
        "products": Field("n_features, n_features", optional=True),  # of earlier versions
        "third": Field("n_features", optional=True),
        "fourth": Field(),
        "resolution": Field(low=0, high=1),
    }
    weighted = ("weight", "total", "within", "third", "fourth")
    products: Array | None = None

    def __init__(self, origin: Array | None = None, exact: bool | None = None) -> None:
        self.origin = None if origin is None else np.asarray(origin, dtype=np.float64)
        self.exact = None if exact is None else int(exact)
        self.near: Array | None = None  # the point that blocks are summed about by now
        self.exponent = 0
        self.n_rows = 0
        self.weight = 0.0
        self.total: Array | None = None  # of (x - near) / 2^exponent
        self.within: Array | None = None  # the others are about the mean
        self.third: Array | None = None
        self.fourth: Array = 0.0
        self.resolution = 0.0

    def settled(self, rows: Array, n_samples: int) -> Self:
        found = copy.copy(self)
        if found.origin is None:
            found.origin = near_mean(rows)
        if found.exact is None:
            found.exact = int(exact_products(n_samples, int(rows.shape[1])))
        return found

    @classmethod
    def from_state(cls, state: dict[str, NDArray[Any]]) -> Self:
        self = super().from_state(state)
        if self.products is not None:  # of an earlier version, whose sums are about the origin
            sums = (self.total, self.products, self.third, self.fourth)
            RawSums(self._origin, 0, self.weight, *sums).fill(self)
            self.products = None
        return self

    @property
    def n_features(self) -> int | None:
        return None if self.total is None else int(self.total.shape[0])

    @property
    def count(self) -> float:
        """How many rows the weights stand for: their sum, but at least the number of rows."""
        return max(self.weight, float(self.n_rows))

    @property
    def mean(self) -> Floats:
        """Weighted mean of the rows."""
        within = linalg.to_numpy(self.total) / self.weight
        mean: Floats = self._origin + linalg.scaled(within, -self.exponent)
        return mean

    @property
    def scatter(self) -> Floats:
        """Sum of w (x - mean)(x - mean)', of shape (n_features, n_features)."""
        scatter: Floats = linalg.scaled(linalg.to_numpy(self.within), -2 * self.exponent)
        return scatter

    @property
    def centred_fourth(self) -> float:
        """Sum of w ||x - mean||^4."""
        return float(linalg.scaled(np.float64(self.fourth), -4 * self.exponent))

    @property
    def at_unit_scale(self) -> Moments:
        """Moments of the rows divided by 2^exponent."""
        return self.times(-self.exponent)

    def times(self, exponent: int) -> Moments:
        """Moments of the rows multiplied by 2^exponent."""
        if exponent == 0 or self.total is None:
            return self
        found = copy.copy(self)
        found.origin = found.near = linalg.scaled(self._origin, -exponent)
        found.exponent = self.exponent + exponent
        return found

    def over(self, exponent: int) -> Moments:
        """Moments of the rows divided by 2^exponent, with sums of just these."""
        found = self.times(-exponent)
        if found.exponent == 0 or found.total is None:
            return found
        names = ("total", "within", "third")
        found = copy.copy(found)
        *sums, found.fourth = found._divided_by(0, names, linalg.to_numpy)
        for name, part in zip(names, sums, strict=True):
            setattr(found, name, part)
        found.exponent = 0
        return found

    def exponent_with(self, other: Moments) -> int:
        """The exponent of what varies most: the rows of either, or from one to the other."""
        half = float(np.abs(between(self._origin, other._origin, 1)).max())
        gap = in_reach(linalg.exponent_of(half) + 1) if half > 0 else self.exponent
        if self.exponent == other.exponent == gap:
            return gap
        sizes = [part.exponent for part in (self, other) if part._varies]
        return max([*sizes, gap] if half > 0 else sizes, default=gap)

    @property
    def _varies(self) -> bool:
        """Whether any feature of the rows does; those that do not say nothing about scale."""
        return bool((linalg.namespace(self.within).linalg.diagonal(self.within) > 0).any())

    @property
    def centred(self) -> RawSums:
        """Sums about the mean."""
        return self.about(self.mean)

    def about(self, origin: Floats) -> RawSums:
        """Sums of y, y y', ||y||^2 y and ||y||^4 with y = x - origin."""
        e, weight = self.exponent, self.weight
        total, within, third = (
            linalg.to_numpy(part) for part in (self.total, self.within, self.third)
        )
        shift = linalg.scaled(self._origin, e) - linalg.scaled(origin, e) + total / weight
        third, fourth = moved(-shift, weight, within, third, float(self.fourth))
        sums = (weight * shift, within + weight * np.outer(shift, shift), third, np.float64(fourth))
        return RawSums(
            origin, 0, weight, *(linalg.scaled(part, -k * e) for k, part in enumerate(sums, 1))
        )

    @property
    def _origin(self) -> Floats:
        origin = self.origin if self.near is None else self.near
        return np.asarray(linalg.to_numpy(origin), dtype=np.float64)

    def _update(self, X: Array, w: NDArray[Any] | None, first_row: Any) -> None:
        exact = exact_products(*X.shape) if self.exact is None else bool(self.exact)
        if self.origin is None:
            self.origin = near_mean(X)
        blocks = linalg.blocks(X, w, on_host=max(1, X.shape[1] // LARGER_BLOCKS))
        self.add_blocks(((rows, weight) for _, rows, weight in blocks), X, exact)

    def add_blocks(
        self, blocks: Iterable[tuple[Array, Array | None]], X: Array, exact: bool
    ) -> None:
        """Add blocks of (rows, weights) of the kind of X, each of which is used before the next."""
        sums = RawSums.none(self._origin, self.exponent, X)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for rows, weight in blocks:
                self.n_rows += int(rows.shape[0])
                rows = double(rows) if exact else rows
                weight = None if weight is None else linalg.like(weight, rows)
                if not sums.add(rows, weight):
                    self._join(sums)
                    sums = RawSums.none(*place_of(rows, weight), X)
                    sums.add(rows, weight, always=True)
            self._join(sums)
        kind = linalg.namespace(X).float64 if exact else X.dtype
        self.resolution = max(self.resolution, float(linalg.namespace(X).finfo(kind).eps))

    def _check_state(self) -> None:
        self.exponent = self.exponent or 0
        name = "within" if self.products is None else "products"
        seen = self._expect_together("total", name, "third")
        if seen != (self.n_rows > 0) or seen != (self.weight > 0):
            raise InputError(
                "n_rows, weight and sums must be of the same rows, got "
                f"n_rows {self.n_rows}, weight {self.weight:g} and {'' if seen else 'no '}sums"
            )
        if not seen:
            return
        if self.origin is None:
            raise InputError("origin is missing")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, products = self.mean, np.asarray(getattr(self, name))
            size = np.abs(products).max() + self.weight * np.square(np.abs(mean)).max()
            rounding = HALF_THE_DIGITS * size
        if not np.isfinite(mean).all():
            raise InputError(f"weight must be large enough for a mean, got {self.weight:g}")
        for power, part in enumerate(("total", name, "third", "fourth"), 1):
            largest = np.abs(np.asarray(getattr(self, part))).max()
            if not largest <= self.weight * FARTHEST**power:
                raise InputError(
                    f"{part} must be a sum over rows of weight {self.weight:g}, got {largest:g}"
                )
        if not (np.abs(products - products.T) <= rounding).all():
            raise InputError(f"{name} must be symmetric, but is not")
        if not (np.diag(products) >= -rounding).all():
            raise InputError(f"{name} must have no negative diagonal, got one")

    def _join(self, sums: RawSums) -> None:
        """Add the rows of some blocks; those that follow are summed about the same origin."""
        if sums.weight > 0:
            self._add(sums.fill(Moments()), lambda part: linalg.place(part, sums.total))
            gap = between(sums.origin, self._origin, self.exponent)
            self.total = self.total + self.weight * linalg.place(gap, sums.total)
            self.near = sums.origin

    def _expect_same_settings(self, other: Self) -> None:
        """Any origins and products will do."""

    def _merge(self, other: Moments) -> None:
        self._add(other, linalg.to_numpy)
        self.n_rows += other.n_rows
        self.resolution = max(self.resolution, other.resolution)

    def _add(self, other: Moments, place: Any) -> None:
        """Add the sums of another, with arrays brought to where `place` puts them."""
        sums = ("total", "within", "third")
        if self.total is None:
            self.near, self.exponent = other._origin, other.exponent
            self.origin = self.near if self.origin is None else self.origin
            self.weight, self.fourth = other.weight, other.fourth
            for name in sums:
                setattr(self, name, place(getattr(other, name)))
            return
        exponent = self.exponent_with(other)
        mine, theirs = (part._divided_by(exponent, sums, place) for part in (self, other))
        (total, within, third, fourth), (total_2, within_2, third_2, fourth_2) = mine, theirs
        xp, first, second = linalg.namespace(total), self.weight, other.weight
        whole = first + second
        apart = place(between(self._origin, other._origin, exponent))
        shares = total / first, total_2 / second
        gap = apart + shares[1] - shares[0]
        rounding = 4 * float(np.finfo(np.float64).eps)
        rounding = rounding * (xp.abs(apart) + xp.abs(shares[0]) + xp.abs(shares[1]))
        gap = xp.where(xp.abs(gap) > rounding, gap, xp.zeros_like(gap))
        third, fourth = moved(gap * (second / whole), first, within, third, fourth)
        third_2, fourth_2 = moved(-gap * (first / whole), second, within_2, third_2, fourth_2)
        self.exponent, self.weight = exponent, whole
        self.total = total + total_2 + second * apart
        root = (first * (second / whole)) ** 0.5 * gap
        self.within = linalg.sum_with_outer(within, within_2, root)
        self.third, self.fourth = third + third_2, fourth + fourth_2

    def _divided_by(self, exponent: int, names: tuple[str, ...], place: Any) -> list[Array]:
        """The sums of rows divided by 2^exponent."""
        e = exponent - self.exponent
        arrays = [linalg.scaled(place(getattr(self, n)), k * e) for k, n in enumerate(names, 1)]
        return [*arrays, linalg.scaled(place(self.fourth) if e else self.fourth, 4 * e)]


def exact_products(n_samples: int, n_features: int) -> bool:
    """Whether products of float32 rows are made in float64."""
    return n_samples * n_features**2 < EXACT_PRODUCTS


def near_mean(rows: Array) -> Floats:
    """The mean of the first block of rows, in digits that either dtype has."""
    mean, size = middle(next(linalg.blocks(linalg.native(rows), on_device=1))[1])
    found: Floats = linalg.scaled(mean.astype(np.float32).astype(np.float64), -size)
    return found


@dataclass
class RawSums:
    """Sums of 1, y, y y', ||y||^2 y and ||y||^4 with y = (x - origin) / 2^exponent."""

    origin: Floats
    exponent: int
    weight: float
    total: Array
    products: Array
    third: Array
    fourth: Array

    @classmethod
    def none(cls, origin: Floats, exponent: int, X: Array) -> RawSums:
        """Of no rows, on the device of X."""
        d = X.shape[1]
        total, third, products = (linalg.zeros(shape, X) for shape in (d, d, (d, d)))
        return cls(origin, exponent, 0.0, total, products, third, 0.0)

    def add(self, rows: Array, w: Array | None, always: bool = False) -> bool:
        """Add the rows, unless they are far from the origin or need another exponent."""
        xp = linalg.namespace(rows)
        origin = linalg.like(linalg.scaled(self.origin, self.exponent), rows)
        rows = linalg.scaled(rows, self.exponent)
        Y, radius, total, third = linalg.shifted_sums(rows, origin, w)
        weighted = radius if w is None else w * radius
        sums = [double(weighted).sum(), double(radius.max()), total @ total]
        sums += [] if w is None else [double(w).sum()]
        energy, top, drift, *given = xp.stack(sums).tolist()  # one transfer from a device
        weight = given[0] if given else float(Y.shape[0])
        far = drift * FAR > weight * energy * (FAR - 1)
        if not always and (far or not math.isfinite(energy) or top > 4.0**REACH):
            return False
        if not always and top <= 4.0**-REACH and bool((Y != 0).any()):
            return False
        half = Y if w is None else Y * xp.sqrt(w)[:, None]
        self.weight += weight
        self.total += total
        linalg.add_product(self.products, half)
        self.third += third
        self.fourth = self.fourth + double(weighted) @ double(radius)
        return True

    def fill(self, moments: Moments) -> Moments:
        """The moments, with these sums about their own mean; the products are used up."""
        total, within = self.total, self.products
        linalg.complete(within)
        xp, shift = linalg.namespace(total), total / self.weight
        turned, whole = within @ shift, 1.0 * xp.linalg.diagonal(within)
        root = total / self.weight**0.5  # the same factor twice keeps the matrix symmetric
        linalg.add_outer(within, root, -root)
        left = xp.linalg.diagonal(within)
        constant = left <= CANCELLED * whole
        if bool(constant.any()):
            within[constant, :], within[:, constant] = 0.0, 0.0
        trace, length = whole.sum(), shift @ shift
        moments.third = self.third - 2 * turned
        moments.third += (2 * self.weight * length - trace) * shift
        moments.fourth = (
            self.fourth
            - 4 * (shift @ self.third)
            + 4 * (shift @ turned)
            + length * (2 * trace - 3 * self.weight * length)
        )
        moments.near, moments.exponent, moments.weight = self.origin, self.exponent, self.weight
        moments.origin = self.origin if moments.origin is None else moments.origin
        moments.total, moments.within = total, within
        return moments


def moved(shift: Array, weight: float, within: Array, third: Array, fourth: Any) -> tuple[Any, Any]:
    """Third and fourth sums about a point that lies `shift` from the mean."""
    trace, length = linalg.namespace(within).linalg.trace(within), shift @ shift
    turned = within @ shift
    return (
        third - 2 * turned - (trace + weight * length) * shift,
        fourth
        - 4 * (shift @ third)
        + 4 * (shift @ turned)
        + length * (2 * trace + weight * length),
    )


def middle(rows: Array, w: Array | None = None) -> tuple[Floats, int]:
    """The mean of some rows over 2^e, in digits that the rows' dtype has, and e."""
    xp = linalg.namespace(rows)
    size = linalg.exponent_of(linalg.largest(rows))
    weight = float(rows.shape[0]) if w is None else float(double(w).sum())
    sums = linalg.column_sums(double(linalg.scaled(rows, size)), None if w is None else double(w))
    mean = linalg.to_numpy(sums) / weight
    single = rows.dtype == xp.float32
    return (mean.astype(np.float32).astype(np.float64) if single else mean), size


def place_of(rows: Array, w: Array | None) -> tuple[Floats, int]:
    """The mean of some rows, and the exponent that brings their distances from it near one."""
    mean, size = middle(rows, w)
    apart = linalg.scaled(rows, size) - linalg.like(mean, rows)
    exponent = size + linalg.exponent_of(linalg.largest(apart))
    return linalg.scaled(mean, -size), in_reach(exponent)


def in_reach(exponent: int) -> int:
    """The exponent, zero where rows of that size are summed as they are."""
    return exponent if abs(exponent) > REACH else 0


def between(one: Floats, other: Floats, exponent: int) -> Floats:
    """(other - one) / 2^exponent, also where the difference is no float."""
    half = linalg.scaled(other, 1) - linalg.scaled(one, 1)
    difference: Floats = linalg.scaled(half, exponent - 1)
    return difference

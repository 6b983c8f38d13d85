"""Codes of a few bits for every dimension, and rows as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.codecs import bits as packed
from isotropy.codecs.repaired import RepairedCodec
from isotropy.errors import InputError, brief
from isotropy.linalg import like
from isotropy.stored import Field

DEVIATIONS = {8: 4.0, 4: 3.0}  # half the coded range in standard deviations; see Notes
NARROWEST = 2.0**-20  # of a range: a dimension that does not vary


@dataclass(eq=False, repr=False, kw_only=True)
class Scalar(RepairedCodec):
    """Code every dimension in 8 or 4 bits: evenly spaced cells between two fitted ends.

    Parameters
    ----------
    bits : {8, 4}
        With 8, codes are int8, one column per dimension. With 4, they are uint8 with two dimensions
        in a byte: dimension 2i in the lower half, 2i + 1 in the upper half.

    Attributes
    ----------
    low_ : float32 array of shape (n_dims_,)
        Lower end of the first cell.
    span_ : float32 array of shape (n_dims_,)
        The width of 255 or 15 cells, which is all but one.

    Notes
    -----
    The ends are the smallest and largest value of a sample, but at most 4 (8 bits) or 3 (4 bits)
    standard deviations from the mean, so that a few outliers don't make all cells wide. Decoded
    rows are scaled to length one, as the rows are that were coded.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 64))
    >>> codec = Scalar(bits=4).fit(X)
    >>> codec.encode(X).shape, codec.n_bytes
    ((1000, 32), 32)
    >>> bool((codec.queries(X) * codec.decode(codec.encode(X))).sum(axis=1).min() > 0.97)
    True
    """

    name = "scalar"
    learned = {
        "low_": Field("n_dims", kind="single", low=-100, high=100),
        "span_": Field("n_dims", kind="single", low=0, high=200, above=True),
    }

    bits: Literal[8, 4] = 8

    def learn(self, rows: NDArray[np.float32]) -> None:
        wide = rows.astype(np.float64)
        mean, half = wide.mean(axis=0), DEVIATIONS[self.bits] * wide.std(axis=0)
        low = np.maximum(mean - half, wide.min(axis=0))
        high = np.minimum(mean + half, wide.max(axis=0))
        width = np.maximum(high - low, NARROWEST)
        centre = (low + high) / 2
        self.low_ = (centre - width / 2).astype(np.float32)
        self.span_ = (width * self._most / 2**self.bits).astype(np.float32)

    @property
    def _most(self) -> int:
        """The highest cell number."""
        return int(2**self.bits - 1)

    @property
    def dtype(self) -> str:
        return "int8" if self.bits == 8 else "uint8"

    @property
    def n_columns(self) -> int:
        return self.n_dims_ if self.bits == 8 else -(-self.n_dims_ // 2)

    def coded(self, rows: Array) -> Array:
        xp = linalg.namespace(rows)
        shares = xp.clip((rows - like(self.low_, rows)) / like(self.span_, rows), 0, 1)
        cells = shares * self._most  # in float32 and in this order, as faiss does
        if self.bits == 8:
            return xp.astype(xp.floor(cells) - 128, xp.int8)
        return packed.pack_nibbles(xp.astype(cells, xp.uint8))

    def decoded(self, codes: Array) -> Array:
        return linalg.unit_rows(self.values(codes))

    def values(self, codes: Array) -> Array:
        """The middles of the cells: decoded rows before they are scaled to length one."""
        xp = linalg.namespace(codes)
        if self.bits == 8:
            cells = xp.astype(codes, xp.float32) + 128
        else:
            cells = xp.astype(packed.unpack_nibbles(codes, self.n_dims_), xp.float32)
        return like(self.low_, cells) + (cells + 0.5) / self._most * like(self.span_, cells)

    def _check_params(self) -> None:
        super()._check_params()
        if type(self.bits) is not int or self.bits not in DEVIATIONS:
            raise InputError(f"bits must be 8 or 4, got {brief(self.bits)}.")


@dataclass(eq=False, repr=False, kw_only=True)
class Float(RepairedCodec):
    """Keep rows of length one as they are, in float32 or float16: truncation without codes.

    Parameters
    ----------
    half : bool
        Keep float16 instead of float32.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 64))
    >>> Float(n_dims=16, truncate="pca", half=True).fit(X).n_bytes
    32
    """

    name = "float"

    half: bool = False

    def learn(self, rows: NDArray[np.float32]) -> None:
        """There is nothing to learn besides the repair."""

    @property
    def dtype(self) -> str:
        return "float16" if self.half else "float32"

    @property
    def n_columns(self) -> int:
        return self.n_dims_

    def coded(self, rows: Array) -> Array:
        xp = linalg.namespace(rows)
        return xp.astype(rows, getattr(xp, self.dtype), copy=False)

    def decoded(self, codes: Array) -> Array:
        xp = linalg.namespace(codes)
        return linalg.unit_rows(xp.astype(codes, xp.float32))

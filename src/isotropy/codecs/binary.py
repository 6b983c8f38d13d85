"""One bit for every dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.codecs import bits as packed
from isotropy.codecs.repaired import RepairedCodec
from isotropy.linalg import like
from isotropy.stored import Field


@dataclass(eq=False, repr=False, kw_only=True)
class Binary(RepairedCodec):
    """Code every dimension in one bit: whether it is above its threshold.

    Codes are uint8 in the order of `numpy.packbits`: dimension 0 is the highest bit of the first
    byte. Without a repair and with thresholds of zero they equal the `ubinary` embeddings of
    sentence-transformers.

    Parameters
    ----------
    threshold : {"zero", "median"}
        Zero, for rows that are centred already, or the median of each dimension.
    asymmetric : bool
        Score the bits of rows with float queries, which keeps more of a query. Otherwise queries
        become bits too, and the search counts differing bits, which is fast.

    Attributes
    ----------
    threshold_ : float32 array of shape (n_dims_,)

    Notes
    -----
    A bit stands for plus or minus 1/sqrt(n_dims_). The score of two codes with h differing bits is
    their cosine, 1 - 2 h / n_dims_. Thresholds are subtracted from float queries.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy import Center
    >>> X = np.random.default_rng(0).standard_normal((1000, 64)) + 3
    >>> codec = Binary(repair=Center()).fit(X)
    >>> codes = codec.encode(X)
    >>> codes.shape, codes.dtype
    ((1000, 8), dtype('uint8'))
    >>> scores, indices = codec.search(X[:2], codes, k=1)
    >>> indices.ravel().tolist()
    [0, 1]
    """

    name = "binary"
    learned = {"threshold_": Field("n_dims", kind="single", low=-1, high=1)}

    threshold: Literal["zero", "median"] = "zero"
    asymmetric: bool = False

    def learn(self, rows: NDArray[np.float32]) -> None:
        zeros = np.zeros(rows.shape[1], np.float32)
        self.threshold_ = zeros if self.threshold == "zero" else np.median(rows, axis=0)

    @property
    def dtype(self) -> str:
        return "uint8"

    @property
    def n_columns(self) -> int:
        return -(-self.n_dims_ // 8)

    def coded(self, rows: Array) -> Array:
        return packed.pack_bits(rows > like(self.threshold_, rows))

    def decoded(self, codes: Array) -> Array:
        return packed.signs(codes, self.n_dims_) * self.n_dims_**-0.5

    def asked(self, rows: Array) -> Array:
        if not self.asymmetric:
            return self.decoded(self.encoded(rows))
        found = self.space(rows)
        return linalg.unit_rows(found - like(self.threshold_, found))

    def prepared_queries(self, rows: Array) -> Array:
        return self.asked(rows) if self.asymmetric else self.encoded(rows)

    def answers(self, codes: Array) -> Array:
        return self.decoded(codes) if self.asymmetric else codes

    def compared(self, asked: Array, answers: Array) -> Array:
        if self.asymmetric:
            return asked @ answers.T
        return 1 - packed.n_different_bits(asked, answers) * (2 / self.n_dims_)

    def _check_params(self) -> None:
        super()._check_params()
        checks.choice(self.threshold, "threshold", ("zero", "median"))
        checks.flag(self.asymmetric, "asymmetric")

"""Two stages: candidates by short codes, ranked again by longer ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.codecs.base import (
    Blocks,
    Codec,
    Tensors,
    as_given,
    beside,
    joined,
    restored,
    split_off,
)
from isotropy.codecs.binary import Binary
from isotropy.codecs.ranking import best_of, keys_of, ranked
from isotropy.codecs.scalar import Scalar
from isotropy.engines import Checkpoint
from isotropy.errors import InputError, brief
from isotropy.sources import Source

GATHERED = 1 << 21  # elements of the candidates that are decoded at a time


@dataclass(eq=False, repr=False, kw_only=True)
class Rescored(Codec):
    """Pick candidates by short codes, then rank them by longer ones, which may stay on disk.

    A code is that of `coarse`, followed by the bytes of that of `fine`.

    Parameters
    ----------
    coarse : Codec
        For the candidates; `n_bytes` is the size of its codes.
    fine : Codec
        For their scores, and for `decode` and `queries`.
    n_candidates : int
        Rows that are scored again for each query; k of them if k is larger.
    align_queries : bool
        Move queries so that their mean is that of the rows; `fit` needs `queries` for it.

    Attributes
    ----------
    coarse_, fine_ : Codec
        Fitted clones, or what was given, if it is fitted.

    Notes
    -----
    In `scores`, rows that are no candidates come below all candidates, in the order of `coarse`,
    with scores from -3 to -1.

    As both codes of a row lie side by side, a search in a mapped file reads all of it, block by
    block. `isotropy.export.faiss` keeps them apart: there, only those of candidates are read.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 64))
    >>> codec = Rescored(coarse=Binary(), fine=Scalar(bits=8)).fit(X)
    >>> codec.n_bytes, codec.n_bytes_stored
    (8, 72)
    """

    name = "rescored"

    coarse: Codec = field(default_factory=Binary)
    fine: Codec = field(default_factory=Scalar)
    n_candidates: int = 100
    align_queries: bool = False

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        self.coarse_, self.fine_ = (
            _fitted(part, source, checkpoint) for part in (self.coarse, self.fine)
        )
        return int(self.fine_.n_samples_seen_)

    @property
    def dtype(self) -> str:
        return "uint8"

    @property
    def n_columns(self) -> int:
        return int(self.coarse_.n_bytes_stored + self.fine_.n_bytes_stored)

    @property
    def n_bytes(self) -> int:
        return int(self.coarse_.n_bytes)

    @property
    def n_dims_(self) -> int:
        return int(self.fine_.n_dims_)

    def encoded(self, rows: Array) -> Array:
        parts = [_bytes(codec.encoded(rows)) for codec in (self.coarse_, self.fine_)]
        return linalg.namespace(parts[0]).concat(parts, axis=1)

    def decoded(self, codes: Array) -> Array:
        return self.fine_.decoded(self._fine(codes))

    def asked(self, rows: Array) -> Array:
        return self.fine_.asked(rows)

    def best(self, rows: Array, codes: Array, k: int) -> Array:
        n_kept = min(max(k, self.n_candidates), codes.shape[0])
        _, candidates = ranked(self.coarse_.best_in(rows, self._coarse_blocks(codes), n_kept))
        asked = self.asked(rows)
        step = max(1, GATHERED // (n_kept * asked.shape[1]))
        keys = []
        for start in range(0, asked.shape[0], step):
            some = candidates[start : start + step]
            found = self.decoded(codes[some.reshape(-1)]).reshape(*some.shape, -1)
            scores = (found @ asked[start : start + step, :, None])[:, :, 0]
            keys.append(best_of(keys_of(scores, some), k))
        return linalg.namespace(keys[0]).concat(keys)

    def scores(self, Q: Any, codes: Any) -> Any:
        found = self._expect_codes(codes)
        rows = beside(self._query_rows(Q), found)
        n_kept = min(self.n_candidates, found.shape[0])
        scores, indices = ranked(self.best(rows, found, n_kept))
        everything = self.coarse_.all_scores(rows, self._coarse_blocks(found)) - 2
        queries = np.arange(rows.shape[0])[:, None]
        everything[linalg.index(queries, everything), indices] = scores
        return as_given(everything, codes)

    def _coarse_blocks(self, codes: Array) -> Blocks:
        return ((start, self._coarse(part)) for start, part in self._blocks(codes))

    def _coarse(self, codes: Array) -> Array:
        return _viewed(codes[:, : self.coarse_.n_bytes_stored], self.coarse_.dtype)

    def _fine(self, codes: Array) -> Array:
        return _viewed(codes[:, self.coarse_.n_bytes_stored :], self.fine_.dtype)

    def _check_params(self) -> None:
        for name in ("coarse", "fine"):
            part = getattr(self, name)
            if not isinstance(part, Codec) or isinstance(part, Rescored):
                raise InputError(f"{name} must be a codec of one stage, got {brief(part)}.")
            if part.align_queries:
                raise InputError(f"{name} must not align queries. Set align_queries of Rescored.")
        if not self.fine.decodes:
            raise InputError(f"fine must be a codec that decodes, got {brief(self.fine)}.")
        checks.integer(self.n_candidates, "n_candidates", 1)
        checks.flag(self.align_queries, "align_queries")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fine_")

    def content(self) -> tuple[dict[str, Any], Tensors]:
        header, tensors = super().content()
        for name in ("coarse", "fine"):
            header[name], arrays = getattr(self, f"{name}_").content()
            tensors |= joined(name, arrays)
        return header, tensors

    def restore(self, header: dict[str, Any], tensors: Tensors) -> None:
        tensors = dict(tensors)
        for name in ("coarse", "fine"):
            part = restored(header.get(name), split_off(name, tensors))
            if part.n_features_in_ != self.n_features_in_:
                raise InputError(f"its {name} must be for rows of {self.n_features_in_} dimensions")
            setattr(self, f"{name}_", part)
            setattr(self, name, clone(part))
        if tensors:
            raise InputError(f"{brief(min(tensors))} is not expected")
        self._check_params()


def _fitted(codec: Codec, source: Source, checkpoint: Checkpoint | None) -> Codec:
    """The codec if it is fitted, else a clone that is fitted now."""
    try:
        check_is_fitted(codec)
    except NotFittedError:
        new: Codec = clone(codec)
        return new._learn(source, checkpoint)
    checks.width(source.n_features, codec.n_features_in_)
    return codec


def _bytes(codes: Array) -> Array:
    return _viewed(codes, "uint8")


def _viewed(codes: Array, dtype: str) -> Array:
    """The same bytes as numbers of another dtype."""
    if checks.is_tensor(codes):
        import torch

        return codes.contiguous().view(getattr(torch, dtype))
    return np.ascontiguousarray(codes).view(dtype)

"""Codecs of one vector space: truncated, repaired, and with rows of length one."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from isotropy import checks, linalg, stored
from isotropy.checks import Array
from isotropy.codecs.base import Codec, Tensors, joined, split_off
from isotropy.engines import Checkpoint, reduce
from isotropy.errors import InputError, brief
from isotropy.repairs import Repair, Whiten, restored
from isotropy.sources import MappedSource, Source
from isotropy.stats import Sample
from isotropy.stored import Field

Shared = dict[tuple[Any, ...], tuple[Repair | None, Repair | None]]  # as given, as fitted
SAMPLE_ROWS = 20_000  # from which ranges and thresholds are learned


@dataclass(eq=False, repr=False, kw_only=True)
class RepairedCodec(Codec):
    """A codec that truncates and repairs rows, and scales them to length one, before coding them.

    A subclass defines `learn(rows)`, `coded(rows)` and `decoded(codes)`, and lists its fitted
    arrays in `learned`, with the shape and bounds that are checked on loading.

    Parameters
    ----------
    repair : Repair, optional
        Applied to the truncated rows; a clone of it is fitted with the codec, unless it is fitted.
    n_dims : int, optional
        Dimensions to keep [all].
    truncate : {"first", "pca"}
        Keep the first dimensions, as Matryoshka models are trained for, or the principal components
        about the mean.
    align_queries : bool
        Move queries so that their mean is that of the rows; `fit` needs `queries` for it.
    random_state : int
        Seed of the sample of 20,000 rows that the codec is fitted on.

    Attributes
    ----------
    query_shift_ : float64 array of shape (n_features,), or None
        What is added to queries, before everything else.
    repair_ : Repair or None
    n_dims_ : int
        Dimensions of the repaired space.
    """

    learned: ClassVar[dict[str, Field]] = {}

    repair: Repair | None = None
    n_dims: int | None = None
    truncate: Literal["first", "pca"] = "first"
    align_queries: bool = False
    random_state: int = 0

    @property
    def n_dims_(self) -> int:
        if self.repair_ is not None:
            return self.repair_._n_features_out
        return int(self.n_dims or self.n_features_in_)

    def fit_source(
        self, source: Source, checkpoint: Checkpoint | None, shared: Shared | None = None
    ) -> int:
        """Learn from the rows; `shared` keeps what codecs of the same rows have in common."""
        shared = {} if shared is None else shared
        key: tuple[Any, ...] = (self.n_dims, self.truncate)
        if key not in shared:
            shared[key] = None, self._fitted_pca(source, checkpoint)
        self.pca_ = shared[key][1]
        key = (*key, id(self.repair))
        if key not in shared:  # with the repair itself, as only then its id is its own
            repair = self._fitted_repair(TruncatedRows(source, self), checkpoint)
            shared[key] = self.repair, repair
        self.repair_ = shared[key][1]
        found = reduce(source, [Sample(SAMPLE_ROWS, self.random_state)], checkpoint)
        self.learn(linalg.to_numpy(self.space(found.states[0].rows)))
        return found.n_samples

    def _fitted_pca(self, source: Source, checkpoint: Checkpoint | None) -> Repair | None:
        if self.n_dims is None or self.truncate != "pca":
            return None
        pca = Whiten(method="pca", power=0.0, n_components=self.n_dims, shrinkage=0.0)
        pca.n_features_in_ = source.n_features
        return pca._learn(source, checkpoint)

    def _fitted_repair(self, source: Source, checkpoint: Checkpoint | None) -> Repair | None:
        if self.repair is None:
            return None
        try:
            check_is_fitted(self.repair)
        except NotFittedError:
            repair: Repair = clone(self.repair)
            repair.n_features_in_ = source.n_features
            repair._check_params()
            return repair._learn(source, checkpoint)
        if self.repair.n_features_in_ != source.n_features:
            raise InputError(
                f"repair must be fitted on the {source.n_features} dimensions of the rows after "
                f"truncation, got one of {self.repair.n_features_in_}. Fit it on such rows, or "
                "pass it unfitted."
            )
        return self.repair

    def truncated(self, rows: Array) -> Array:
        """The rows in fewer dimensions."""
        if self.n_dims is None:
            return rows
        return rows[:, : self.n_dims] if self.pca_ is None else self.pca_._repaired(rows)

    def space(self, rows: Array) -> Array:
        """The rows that are coded: truncated, repaired, of length one, in float32."""
        rows = self.truncated(rows)
        if self.repair_ is not None:
            rows = self.repair_._repaired(rows)
        xp = linalg.namespace(rows)
        return xp.astype(linalg.unit_rows(rows), xp.float32, copy=False)

    def encoded(self, rows: Array) -> Array:
        return self.coded(self.space(rows))

    def asked(self, rows: Array) -> Array:
        return self.space(rows)

    @abstractmethod
    def learn(self, rows: NDArray[np.float32]) -> None:
        """Learn from a sample of `space`."""

    @abstractmethod
    def coded(self, rows: Array) -> Array:
        """The codes of rows in `space`."""

    def _check_params(self) -> None:
        if self.repair is not None and (not isinstance(self.repair, Repair) or self.repair.grouped):
            raise InputError(f"repair must be a repair of rows or None, got {brief(self.repair)}.")
        checks.choice(self.truncate, "truncate", ("first", "pca"))
        checks.flag(self.align_queries, "align_queries")
        checks.integer(self.random_state, "random_state", 0)
        if self.n_dims is not None:
            checks.integer(self.n_dims, "n_dims", 1, self.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "repair_") and all(hasattr(self, name) for name in self.learned)

    # The file: the arrays of the codec, and those of its parts as "repair/..." and "pca/..."

    def content(self) -> tuple[dict[str, Any], Tensors]:
        header, tensors = super().content()
        tensors |= {name: np.asarray(getattr(self, name)) for name in self.learned}
        for name in ("pca", "repair"):
            part = getattr(self, f"{name}_")
            header[name] = None if part is None else part.header()
            tensors |= {} if part is None else joined(name, part._tensors())
        return header, tensors

    def restore(self, header: dict[str, Any], tensors: Tensors) -> None:
        self._check_params()
        tensors, n_in = dict(tensors), self.n_features_in_
        self.pca_ = self.repair_ = None
        for name in ("pca", "repair"):
            arrays = split_off(name, tensors)
            if header.get(name) is not None:
                part = restored(header[name], arrays)
                if part.grouped or part.n_features_in_ != n_in:
                    raise InputError(f"its {name} must be one of rows of {n_in} dimensions")
                setattr(self, f"{name}_", part)
            if name == "pca":
                n_in = self.n_dims or n_in
        reduced = self.n_dims is not None and self.truncate == "pca"
        if reduced != (self.pca_ is not None):
            raise InputError("its pca must be there if rows are truncated by it, and only then")
        if self.pca_ is not None and self.pca_._n_features_out != self.n_dims:
            raise InputError(f"its pca must keep {self.n_dims} dimensions")
        self.repair = None if self.repair_ is None else clone(self.repair_)
        sizes = {"n_dims": self.n_dims_, "n_features": self.n_features_in_}
        stored.check(tensors, self.learned, sizes)
        for name in self.learned:
            setattr(self, name, tensors[name])


class TruncatedRows(MappedSource):
    """The rows of a source in fewer dimensions, as a codec keeps them."""

    def __init__(self, source: Source, codec: RepairedCodec) -> None:
        super().__init__(source, codec.truncated, codec.n_dims or source.n_features)
        self.pca = codec.pca_

    def origin(self) -> dict[str, Any]:
        return self.source.origin()

    def identity(self) -> dict[str, Any] | None:
        found = self.source.identity()
        components = b"" if self.pca is None else self.pca.components_.tobytes()
        return found and found | {"kept": [self.n_features, zlib.crc32(components)]}

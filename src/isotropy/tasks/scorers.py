"""Scorers: how a search scores documents for a query. Cosine, and two that correct for hubs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar

import numpy as np

from isotropy import checks, linalg, specs
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.tasks.outcomes import Integers

DOCUMENTS_AT_ONCE = 4096
COMPARED_AT_ONCE = 1024  # documents with the sample that their neighbours are found in
LEAST_DISTANCE = 1e-6  # of unit rows; less is rounding error


@dataclass(frozen=True)
class Documents:
    """The documents of a search, whose rows are read in blocks."""

    texts: Integers
    """The text of each document, as its number."""
    sample: Integers
    """Other texts to compare them with: a sample of queries, or of the documents themselves."""
    read: Callable[[Integers], Floats]
    """Rows of texts in float64."""

    def blocks(self, n_rows: int) -> Iterator[tuple[Integers, Floats]]:
        """Positions and rows of n_rows documents at a time."""
        for start in range(0, len(self.texts), n_rows):
            places = np.arange(start, min(start + n_rows, len(self.texts)))
            yield places, self.read(self.texts[places])


class Index(ABC):
    """Documents that are ready to be searched."""

    @abstractmethod
    def ranked(self, queries: Floats, n: int) -> Integers:
        """Positions of the n documents with the highest scores, or of all if there are fewer.

        Of shape (n_queries, n), the highest first; equal scores keep the order of the documents.
        """


@dataclass(frozen=True)
class CosineIndex(Index):
    """All documents are scored by a function of cosines, block by block; the best are kept."""

    documents: Documents
    scores: Callable[[Floats, Integers], Floats]
    """Scores from cosines, both of shape (n_queries, n_documents), and the documents' positions."""

    def ranked(self, queries: Floats, n: int) -> Integers:
        units = linalg.unit_rows(queries)
        best: Floats = np.empty((len(queries), 0))
        found: Integers = np.empty((len(queries), 0), dtype=np.int64)
        for places, rows in self.documents.blocks(DOCUMENTS_AT_ONCE):
            scores = self.scores(units @ linalg.unit_rows(rows).T, places)
            best = np.hstack([best, scores])
            found = np.hstack([found, np.broadcast_to(places, scores.shape)])
            chosen = highest(best, n)
            best = np.take_along_axis(best, chosen, axis=1)
            found = np.take_along_axis(found, chosen, axis=1)
        return found


def highest(scores: Floats, k: int) -> Integers:
    """Columns of the k highest scores of each row, the highest first; ties keep their order."""
    n_rows, n_columns = scores.shape
    if n_columns <= k:
        return np.argsort(-scores, axis=1, kind="stable")
    edge = np.partition(scores, n_columns - k, axis=1)[:, n_columns - k, None]
    above, equal = scores > edge, scores == edge
    room = k - above.sum(axis=1, keepdims=True)
    above |= equal & (np.cumsum(equal, axis=1) <= room)
    columns = np.nonzero(above)[1].reshape(n_rows, k)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


@public
class Scorer(ABC):
    """How a search scores documents for queries: `Retrieval.score` takes one.

    A subclass defines `index(documents)`, which returns an `Index`. If it has a `name`, `compare`
    finds it by that name.
    """

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Scorer]]] = {}
    compares: ClassVar[bool] = False
    """Whether documents are compared with `documents.sample`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            Scorer.by_name[cls.name] = cls

    @abstractmethod
    def index(self, documents: Documents) -> Index:
        """The documents, ready to be searched; called once per search."""

    def __str__(self) -> str:
        return self.name


def as_scorer(spec: str) -> Scorer | None:
    """The scorer that a text such as "csls" or "csls:k=5" spells; None if it names none."""
    name, params = specs.parse(spec)
    made = Scorer.by_name.get(name)
    if made is None:
        return None
    specs.expect_known(params, signature(made).parameters, f"params of {name}")
    return made(**params)


@dataclass(frozen=True)
class Cosine(Scorer):
    """The cosine of query and document."""

    def index(self, documents: Documents) -> Index:
        return CosineIndex(documents, lambda cosines, places: cosines)


@dataclass(frozen=True)
class _Corrected(Scorer):
    """A score that depends on how near a document is to its k nearest neighbours in a sample."""

    k: int = 10
    compares = True

    def __post_init__(self) -> None:
        checks.integer(self.k, "k", 1)

    def __str__(self) -> str:
        return self.name if self.k == type(self).k else f"{self.name}(k={self.k})"

    def _means(self, documents: Documents, of: Callable[[Floats], Floats]) -> Floats:
        """The mean of a function of a document's cosines with its k nearest neighbours."""
        sample = documents.sample
        n_others = len(sample) - bool(np.isin(sample, documents.texts).any())
        if n_others < self.k:
            raise InputError(
                f"k must be at most {n_others}, the number of texts that a document is compared "
                f"with, got {self.k}. Choose a smaller k, or give more texts."
            )
        units, found = linalg.unit_rows(documents.read(sample)), []
        for places, rows in documents.blocks(COMPARED_AT_ONCE):
            near = linalg.unit_rows(rows) @ units.T
            near[documents.texts[places, None] == sample] = -np.inf  # a text with itself
            nearest = np.partition(near, len(sample) - self.k, axis=1)[:, -self.k :]
            found.append(of(np.sort(nearest, axis=1)).mean(axis=1))
        return np.concatenate(found)


@public
@dataclass(frozen=True)
class CSLS(_Corrected):
    """Cross-domain similarity local scaling: 2 cos(q, d) - r(q) - r(d).

    r(d) is the mean cosine of document d with its k nearest neighbours in a sample: of queries that
    are not scored, if there are any, otherwise of the other documents. Documents that are near to
    everything (hubs) lose, isolated ones gain.

    Parameters
    ----------
    k : int
        Number of neighbours.

    Notes
    -----
    Eq. 7 of [1]. r(q) is the same for all documents of a query and does not change their order, so
    it is left out.

    References
    ----------
    .. [1] Conneau et al. 2018, Word Translation Without Parallel Data.

    Examples
    --------
    >>> from isotropy.tasks import Retrieval
    >>> task = Retrieval(["a?", "b?"], ["hub", "a", "b"], [(0, 1, 1), (1, 2, 1)])
    >>> X = [[1, 0.38], [0.38, 1], [1, 1], [1, -0.1], [-0.1, 1]]
    >>> round(task.score(X).value, 2), task.score(X, scorer=CSLS(k=2)).value
    (0.63, 1.0)
    """

    name = "csls"

    def index(self, documents: Documents) -> Index:
        near = self._means(documents, lambda cosines: cosines)
        return CosineIndex(documents, lambda cosines, places: 2 * cosines - near[places])


@public
@dataclass(frozen=True)
class LocalScaling(_Corrected):
    """Local scaling of distances: -|q - d|/sqrt(m(q) m(d)), of unit rows q and d.

    m(d) is the mean distance of document d to its k nearest neighbours in a sample, as in `CSLS`.
    A distance counts as short if it is short for the neighbourhood of the document.

    Parameters
    ----------
    k : int
        Number of neighbours.

    Notes
    -----
    The variant NICDM of [1], which takes the mean distance where [2] takes that of the k-th
    neighbour. [3] found that such scaling reduces hubness and improves nearest-neighbour
    classification consistently over many data sets. m(q) does not change the order of a query's
    documents, so it is left out. A document with k copies or more is at distance zero from its
    neighbours, and comes last.

    References
    ----------
    .. [1] Schnitzer et al. 2012, Local and Global Scaling Reduce Hubs in Space.
    .. [2] Zelnik-Manor and Perona 2004, Self-Tuning Spectral Clustering.
    .. [3] Feldbauer and Flexer 2019, A Comprehensive Empirical Comparison of Hubness Reduction in
       High-dimensional Spaces.

    Examples
    --------
    >>> from isotropy.tasks import Retrieval
    >>> task = Retrieval(["a?", "b?"], ["hub", "a", "b"], [(0, 1, 1), (1, 2, 1)])
    >>> X = [[1, 0.38], [0.38, 1], [1, 1], [1, -0.1], [-0.1, 1]]
    >>> round(task.score(X).value, 2), task.score(X, scorer=LocalScaling(k=2)).value
    (0.63, 1.0)
    """

    name = "local-scaling"

    def index(self, documents: Documents) -> Index:
        scales = np.sqrt(np.maximum(self._means(documents, distances), LEAST_DISTANCE))
        return CosineIndex(documents, lambda cosines, at: -distances(cosines) / scales[at])


def distances(cosines: Floats) -> Floats:
    """Euclidean distances of unit rows that have these cosines."""
    found: Floats = np.sqrt(np.maximum(2 - 2 * cosines, 0.0))
    return found

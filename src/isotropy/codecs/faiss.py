"""Product quantisation and RaBitQ, as faiss makes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array
from isotropy.codecs.base import beside
from isotropy.codecs.repaired import RepairedCodec
from isotropy.errors import InputError, brief, needs, one_line
from isotropy.stored import Field

PQ = r"PQ[1-9]\d{0,3}(x([1-9]|1[0-2]))?"  # a part of 12 bits takes 2^12 rows
FACTORY = re.compile(
    rf"OPQ[1-9]\d{{0,3}}(_[1-9]\d{{0,3}})?,{PQ}|(RR([1-9]\d{{0,4}})?,)?({PQ}|RaBitQ[2-8]?)"
)


@dataclass(eq=False, repr=False, kw_only=True)
class Faiss(RepairedCodec):
    """Product quantisation or RaBitQ through faiss, which the extra `faiss` installs.

    Parameters
    ----------
    factory : str
        What faiss calls it: "PQ48" (48 parts of 8 bits), "PQ96x4" (96 of 4 bits), "OPQ48,PQ48"
        (after a learned rotation), "RaBitQ" (a bit per dimension, and 8 bytes), "RaBitQ4" (4 bits
        per dimension), "RR,RaBitQ" (after a random rotation).

    Attributes
    ----------
    trained_ : float32 array
        The centroids, or the centre of RaBitQ.
    rotation_ : float32 array of shape (n_dims_out, n_dims_)
        The rotation in front of them; empty if there is none.

    Notes
    -----
    RaBitQ estimates products without decoding rows, so `decode` refuses its codes; `search` and
    `scores` use its estimates, with queries in float. Its codes include 8 bytes of factors.

    Examples
    --------
    ::

        codec = Faiss(factory="OPQ48,PQ48", repair=isotropy.Center()).fit(X)
    """

    name = "faiss"
    learned = {
        "trained_": Field("n_trained", kind="single"),
        "rotation_": Field("n_rotated, n_dims", kind="single"),
    }

    factory: str = "PQ48"

    def learn(self, rows: NDArray[np.float32]) -> None:
        chain, inner = parts(index := made(self.factory, rows.shape[1]))
        quantizer = getattr(inner, "pq", None)
        if quantizer is not None:
            quantizer.cp.min_points_per_centroid = 1  # below it, faiss prints to the terminal
            quantizer.cp.seed = int(self.random_state) % 2**31
        if hasattr(chain, "pq"):  # of its own, as training changes it
            spare = made(self.factory.partition(",")[2], chain.d_out)  # kept alive while it trains
            spare.pq.cp.min_points_per_centroid = 1
            chain.pq = spare.pq
        try:
            index.train(np.ascontiguousarray(rows))
        except RuntimeError as error:
            raise InputError(
                f"X must be rows that faiss can train {self.factory} on, got {len(rows)} "
                f"({_reason(error)}). Give more rows."
            ) from error
        if hasattr(chain, "pq"):
            chain.pq = None
        self.trained_ = _vector(inner).copy()
        self.rotation_ = np.empty((0, rows.shape[1]), np.float32)
        if chain is not None:
            import faiss

            matrix = faiss.vector_to_array(chain.A)
            self.rotation_ = matrix.reshape(chain.d_out, chain.d_in).copy()

    def index(self) -> Any:
        """An empty faiss index with what was learned, for rows of the repaired space."""
        n_trained, rotation = shapes(self.factory, self.n_dims_)
        if self.rotation_.shape != rotation:
            raise InputError(f"rotation_ must have shape {rotation}, got {self.rotation_.shape}")
        if self.trained_.shape != (n_trained,):
            raise InputError(f"trained_ must have {n_trained} values, got {self.trained_.shape}")
        index = made(self.factory, self.n_dims_)  # not before: it takes memory
        chain, inner = parts(index)
        import faiss

        faiss.copy_array_to_vector(np.ascontiguousarray(self.trained_), _place(inner))
        if chain is not None:
            faiss.copy_array_to_vector(self.rotation_.ravel(), chain.A)
            chain.is_trained = True
            chain.set_is_orthonormal()
        inner.is_trained = index.is_trained = True
        return index

    @property
    def dtype(self) -> str:
        return "uint8"

    @property
    def n_columns(self) -> int:
        return int(self.index().sa_code_size())

    def coded(self, rows: Array) -> Array:
        return beside(self.index().sa_encode(_host(rows)), rows)

    def decoded(self, codes: Array) -> Array:
        if not self.decodes:
            raise InputError(
                f"factory must be one whose codes stand for rows, got {self.factory!r}, which only "
                "estimates products. Use search or scores."
            )
        rows = self.index().sa_decode(np.ascontiguousarray(linalg.to_numpy(codes)))
        return beside(linalg.unit_rows(rows), codes)

    @property
    def decodes(self) -> bool:  # type: ignore[override]
        """Whether codes stand for rows: those of RaBitQ don't."""
        return "RaBitQ" not in self.factory

    def answers(self, codes: Array) -> Array:
        if self.decodes:
            return self.decoded(codes)
        _, inner = parts(index := self.index())
        inner.add_sa_codes(np.ascontiguousarray(linalg.to_numpy(codes)))
        index.ntotal = inner.ntotal
        return index

    def compared(self, asked: Array, answers: Any) -> Array:
        if self.decodes:
            return super().compared(asked, answers)
        scores, places = answers.search(_host(asked), answers.ntotal)
        found = np.empty_like(scores)
        np.put_along_axis(found, places, scores, axis=1)
        return beside(found, asked)

    def restore(self, header: dict[str, Any], tensors: Any) -> None:
        super().restore(header, tensors)
        self.index()

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.factory, str) or not FACTORY.fullmatch(self.factory):
            raise InputError(
                'factory must be PQ or RaBitQ as faiss writes them, such as "PQ48", "PQ96x4", '
                f'"OPQ48,PQ48" or "RR,RaBitQ4", got {brief(self.factory)}.'
            )


def made(factory: str, n_dims: int) -> Any:
    """The index of a factory string, empty and not trained."""
    with needs("faiss", "faiss"):
        import faiss
    try:
        index = faiss.index_factory(n_dims, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"factory must fit rows of {n_dims} dimensions, got {factory!r} ({_reason(error)}). "
            "The number of parts must divide the dimensions."
        ) from error
    _, inner = parts(index)
    if hasattr(inner, "qb"):
        inner.qb = 0  # queries in float
    if hasattr(inner, "do_polysemous_training"):
        inner.do_polysemous_training = False  # it only renumbers centroids, and takes a minute
    return index


def shapes(factory: str, n_dims: int) -> tuple[int, tuple[int, int]]:
    """How many values a factory learns for rows of so many dimensions, and its rotation's shape.

    Examples
    --------
    >>> shapes("OPQ4_16,PQ4x4", 24), shapes("RaBitQ", 24)
    ((256, (16, 24)), (24, (0, 24)))
    """
    rotation, _, codes = factory.rpartition(",")
    asked = rotation.partition("_")[2] if "OPQ" in rotation else rotation.removeprefix("RR")
    n_out = int(asked or n_dims)
    n_trained = n_out if "RaBitQ" in codes else n_out << int(codes.partition("x")[2] or 8)
    return n_trained, (n_out if rotation else 0, n_dims)


def parts(index: Any) -> tuple[Any, Any]:
    """(the rotation in front or None, the quantizer) of an index, which must be kept alive."""
    import faiss

    found: Any = faiss.downcast_index(index)
    if type(found) is not faiss.IndexPreTransform:
        return None, found
    chain: Any = found.chain
    return faiss.downcast_VectorTransform(chain.at(0)), faiss.downcast_index(found.index)


def _place(inner: Any) -> Any:
    return inner.pq.centroids if hasattr(inner, "pq") else inner.center


def _vector(inner: Any) -> NDArray[np.float32]:
    import faiss

    found: NDArray[np.float32] = faiss.vector_to_array(_place(inner))
    return found


def _host(rows: Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(linalg.to_numpy(rows))


def _reason(error: RuntimeError) -> str:
    return one_line(str(error).rpartition("Error: ")[2], 120)

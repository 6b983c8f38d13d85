"""Rotate the axes, at random or so that the signs of the coordinates say most about a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, reduce, using
from isotropy.errors import InputError, public
from isotropy.kmeans import unit_of
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Invertible
from isotropy.repairs.drift import held_out
from isotropy.repairs.steps import Step, affine_steps
from isotropy.sources import ArraySource, Source
from isotropy.stats import BlockSums, Moments, Sample, SignProducts
from isotropy.stored import Field

METHODS = ("itq", "random", "hadamard")
N_ROUNDS = 3  # of Hadamard blocks
TOLERANCE = 1e-6  # share of the objective that a step must add


@public
@dataclass(eq=False, repr=False)
class Rotate(Invertible):
    r"""Multiply the rows by an orthogonal matrix: x R.

    Lengths, distances and cosines stay as they are, and so do dimensions. What changes is how much
    each coordinate holds, which matters to codes of a few bits a coordinate. Center first:
    `Chain([Center(), Rotate()])`.

    Parameters
    ----------
    method : {"itq", "random", "hadamard"}
        itq: learned, so that the centred rows are as near as possible to their signs. random: drawn
        uniformly. hadamard: random signs and permutations between Hadamard blocks, which takes
        O(d log d) operations per row instead of d^2.
    random_state : int
        Seed of the rotation, which is the start of itq, and of the sample.
    n_iter : int
        Most steps of itq; it stops earlier if a step adds less than a millionth.
    max_samples : int
        Rows that itq is learned on: a uniform sample if there are more.

    Attributes
    ----------
    rotation_ : array of shape (n_features, n_features)
        R, orthogonal.
    matrix_ : array of shape (n_features, n_features)
        R, empty for hadamard.
    signs_, orders_ : arrays of shape (3, n_features)
        What hadamard does in each round; empty for the others.

    Notes
    -----
    itq is Gong and Lazebnik, Iterative quantization: a Procrustean approach to learning binary
    codes, 2011: in turn B = sign(Z R), and R = V U' with B'Z = U S V', where Z are the centred
    rows. Each step makes the sum of |Z R| larger. Differs from it: all dimensions are kept, so no
    principal components are taken, and Z is a sample, which is read once.

    hadamard: each of three rounds permutes the coordinates, changes some signs, and multiplies
    blocks of p coordinates by the Hadamard matrix over sqrt(p). p is the largest power of two that
    is left: 768 = 512 + 256. On a CPU it is faster than a matrix from about 2,000 features on.

    Affine. The mean is subtracted while learning only.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9.0, 1.0, 1.0, 1.0]
    >>> Y = Rotate("random").fit_transform(X)
    >>> np.allclose(X @ X.T, Y @ Y.T)
    True
    >>> bool(np.abs(Rotate().fit_transform(X)).sum() > np.abs(Y).sum())
    True
    """

    name = "rotate"
    on_request = True
    learned = {
        "matrix_": Field("n_stored, n_features", orthonormal=True),
        "signs_": Field("n_rounds, n_features", kind="int", low=-1, high=1),
        "orders_": Field("n_rounds, n_features", kind="int", low=0),
    }

    method: Literal["itq", "random", "hadamard"] = "itq"
    random_state: int = 0
    n_iter: int = 50
    max_samples: int = 100_000
    normalize: bool = False

    def _check_params(self) -> None:
        super()._check_params()
        checks.choice(self.method, "method", METHODS)
        checks.integer(self.random_state, "random_state", 0, (1 << 63) - 1)
        checks.integer(self.n_iter, "n_iter", 1)
        checks.integer(self.max_samples, "max_samples", 1)

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        statistics: list[Any] = [Moments(), BlockSums(source.n_samples)]
        if self.method == "itq":
            statistics.append(Sample(self.max_samples, self.random_state))
        found = reduce(source, statistics, checkpoint)
        self.moments_, blocks, *sample = found.states
        self.held_out_ = held_out(blocks)
        d, random = source.n_features, np.random.default_rng(self.random_state)
        self.matrix_ = np.zeros((0, d))
        self.signs_ = self.orders_ = np.zeros((0, d), dtype=np.int64)
        if self.method == "hadamard":
            self.signs_ = random.choice([-1, 1], (N_ROUNDS, d))
            self.orders_ = np.stack([random.permutation(d) for _ in range(N_ROUNDS)])
        else:
            self.matrix_ = haar(d, random)
        if self.method == "itq":
            rows = centred(sample[0].rows, self.moments_.mean)
            weights = sample[0].weights
            self.matrix_ = itq(rows, weights, self.matrix_, self.n_iter, source.device)
        self._prepare()
        return found.n_samples

    def _sizes(self) -> dict[str, int]:
        fast = self.method == "hadamard"
        sizes = {"n_stored": 0 if fast else self.n_features_in_, "n_rounds": N_ROUNDS * fast}
        return super()._sizes() | sizes

    def _check_fitted(self) -> None:
        if not self.matrix_.any(axis=1).all():
            raise InputError("matrix_ must have no rows of zeros, but does")
        if not self.signs_.all():
            raise InputError("signs_ must be -1 or 1, got 0")
        if not np.array_equal(np.sort(self.orders_), np.indices(self.orders_.shape)[1]):
            raise InputError("orders_ must be permutations, but are not")

    def _prepare(self) -> None:
        matrix = self.matrix_
        if self.method == "hadamard":
            matrix = mixed(np.eye(self.n_features_in_), self.signs_, self.orders_)
        self._map: dict[str, NDArray[Any]] = {"float64": matrix}
        self._map["float32"] = matrix.astype(np.float32)

    @property
    def rotation_(self) -> Floats:
        """R, of shape (n_features, n_features)."""
        return self._map["float64"]

    def apply(self, rows: Array, out: Array) -> None:
        if self.method == "hadamard":
            out[:] = mixed(rows, self.signs_, self.orders_)
        else:
            linalg.namespace(rows).matmul(rows, self._like(rows), out=out)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = rows @ self._like(rows).T

    def _like(self, rows: Array) -> Array:
        return like(self._map[str(rows.dtype).removeprefix("torch.")], rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return self.rotation_.T.copy(), np.zeros(self.n_features_in_)

    def own_steps(self) -> list[Step]:
        return affine_steps(*self.affine_form(), None)  # nothing cancels without a mean


def haar(n_features: int, random: np.random.Generator) -> Floats:
    """An orthogonal matrix, drawn uniformly."""
    with linalg.threads_for(n_features):
        Q, R = np.linalg.qr(random.standard_normal((n_features, n_features)))
    found: Floats = Q * np.copysign(1.0, np.diag(R))
    return found


def centred(rows: NDArray[Any], mean: Floats) -> NDArray[Any]:
    """rows - mean, over a power of two that brings their squares into the range of floats."""
    exponent = unit_of(rows)
    rows, mean = linalg.scaled(rows, exponent), linalg.scaled(mean, exponent)
    found = np.empty_like(rows)
    np.subtract(rows, mean, out=found, casting="same_kind")
    return found


def itq(
    rows: NDArray[Any], weights: Floats, rotation: Floats, n_iter: int, device: str = "cpu"
) -> Floats:
    """The rotation after at most n_iter steps of iterative quantisation of centred rows.

    Every step is a pass over the rows, in which the products of signs and rows are summed.
    """
    chunk_rows = max(256, linalg.BLOCK_ELEMENTS // rows.shape[1]) if device == "cpu" else None
    source = ArraySource(linalg.on_device(rows, device), weights, chunk_rows=chunk_rows)
    length = 0.0
    with using() as engine, using(None if engine.in_process else "local"):  # the rows are here
        for _ in range(n_iter):
            (found,) = reduce(source, [SignProducts(rotation)]).states
            if found.length <= (1 + TOLERANCE) * length:
                break
            length = found.length
            near = TOLERANCE * length / len(rotation) * rotation.T  # where the rows are zero
            rotation = nearest_rotation(found.products + near)
    return rotation


def nearest_rotation(products: Floats) -> Floats:
    """The orthogonal R with the largest trace of products @ R."""
    with linalg.threads_for(len(products)):
        left, _, right = scipy.linalg.svd(products, check_finite=False)
    found: Floats = (left @ right).T
    return found


def mixed(rows: Array, signs: NDArray[np.int64], orders: NDArray[np.int64]) -> Array:
    """The rows after all rounds: permuted, with other signs, and mixed within blocks."""
    n_features = rows.shape[1]
    for flips, order in zip(signs, orders, strict=True):
        rows = rows[:, linalg.index(order, rows)] * like(flips, rows)
        start = 0
        while start < n_features:
            end = start + (1 << ((n_features - start).bit_length() - 1))
            rows[:, start:end] = hadamard(rows[:, start:end])
            start = end
    return rows


def hadamard(rows: Array) -> Array:
    """The rows times the Hadamard matrix over the root of its width, which is a power of two."""
    xp, (n_rows, width) = linalg.namespace(rows), rows.shape
    found = rows * width**-0.5
    half = 1
    while half < width:
        pairs = xp.reshape(found, (n_rows, -1, 2, half))
        total = pairs[:, :, 0] + pairs[:, :, 1]
        pairs[:, :, 1] = pairs[:, :, 0] - pairs[:, :, 1]
        pairs[:, :, 0] = total
        half *= 2
    return found

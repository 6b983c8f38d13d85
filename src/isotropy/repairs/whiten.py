"""Decorrelate and scale: covariance to identity, or part of the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, brief, public
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Invertible, SummedRepair
from isotropy.stats import Moments
from isotropy.stored import Field
from isotropy.threads import one_blas_thread

ENOUGH_ROWS = 10  # per feature, not to shrink


@public
@dataclass(eq=False, repr=False)
class Whiten(Invertible, SummedRepair):
    r"""Subtract the mean and map the covariance C = U diag(l) U' towards the identity.

    zca: (x - mean) U diag(l^(-power/2)) U', nearest to the original axes; pca: the same without
    the last U', so the axes are principal components in order of variance.

    Parameters
    ----------
    method : {"zca", "pca"}
    eps : float
        Lower bound of eigenvalues, as a multiple of the mean one, which bounds the scale.
    power : float
        One whitens fully, zero only rotates or centres, a half is soft whitening.
    n_components : int or None
        Number of principal components to keep, None for all. With zca the others become zero.
    shrinkage : float or "auto"
        Share of the covariance replaced by its mean eigenvalue times the identity. "auto" is
        Ledoit and Wolf's if there are fewer than 10 rows per feature, otherwise zero.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
    components_ : array of shape (n_components_, n_features)
        Principal axes.
    scale_ : array of shape (n_components_,)
        Factor along each axis; zero if the rows don't vary along it and nothing was shrunk.
    shrinkage_ : float

    Notes
    -----
    Affine. `inverse_transform` is the pseudo-inverse: directions that were set to zero come back
    as the mean. Covariances are divided by n - 1.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 3)) @ np.diag([9.0, 1.0, 0.1])
    >>> np.cov(Whiten().fit_transform(X).T).round(6) + 0.0
    array([[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]])
    """

    name = "whiten"
    learned = {
        "mean_": Field("n_features"),
        "components_": Field("n_components, n_features", orthonormal=True),
        "scale_": Field("n_components", low=0),
        "shrinkage_": Field(low=0, high=1),
    }
    statistic = Moments

    method: Literal["zca", "pca"] = "zca"
    eps: float = 1e-6
    power: float = 1.0
    n_components: int | None = None
    shrinkage: float | Literal["auto"] = "auto"
    normalize: bool = False

    @property
    def n_components_(self) -> int:
        """Number of principal components kept."""
        return len(self.components_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_ if self.method == "pca" else int(self.n_features_in_)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the output columns: "whiten0", ... for pca, those of the input for zca."""
        names = super().get_feature_names_out(input_features)
        if self.method == "zca":
            return names
        return np.array([f"whiten{i}" for i in range(self.n_components_)], dtype=object)

    def _check_params(self) -> None:
        super()._check_params()
        checks.choice(self.method, "method", ("zca", "pca"))
        checks.real(self.eps, "eps", 0.0)
        checks.real(self.power, "power", 0.0)
        if self.n_components is not None:
            most = getattr(self, "n_features_in_", None)  # unknown before the fit
            checks.integer(self.n_components, "n_components", 1, most)
        if isinstance(self.shrinkage, str):
            if self.shrinkage != "auto":
                raise InputError(
                    f"shrinkage must be 'auto' or a number in [0, 1], got {brief(self.shrinkage)}."
                )
        else:
            checks.real(self.shrinkage, "shrinkage", 0.0, 1.0)

    def solve(self, statistic: Moments) -> None:
        self.mean_, exponent, statistic = (
            statistic.mean, statistic.exponent, statistic.at_unit_scale,
        )  # fmt: skip
        n = statistic.count
        covariance = statistic.scatter / statistic.weight * n / max(n - 1, 1.0)
        values, vectors = linalg.eigh(covariance)
        values = linalg.resolved(values, statistic.resolution)
        if self.shrinkage != "auto":
            self.shrinkage_ = float(self.shrinkage)
        else:
            enough = statistic.count >= ENOUGH_ROWS * self.n_features_in_
            self.shrinkage_ = 0.0 if enough else ledoit_wolf(statistic)
        spread = float(values.mean())
        values = (1 - self.shrinkage_) * values + self.shrinkage_ * spread
        varying = values > 0
        floored = np.where(varying, np.maximum(values, self.eps * spread), 1.0)
        kept = len(values) if self.n_components is None else self.n_components
        with np.errstate(over="ignore"):  # `fit` refuses what is not finite
            scale = floored ** (-self.power / 2) * np.exp2(-self.power * exponent)
        self.scale_ = np.where(varying, scale, 0.0)[:kept]
        largest = np.abs(vectors).argmax(axis=0)
        signs = np.sign(vectors[largest, np.arange(len(values))])
        self.components_ = (vectors * signs).T[:kept].copy()
        self._prepare()

    def _sizes(self) -> dict[str, int]:
        kept = self.n_features_in_ if self.n_components is None else self.n_components
        return super()._sizes() | {"n_components": kept}

    def _prepare(self) -> None:
        """Keep A' in both dtypes: computing it takes longer than applying it to a row."""
        with np.errstate(over="ignore"):  # `transform` refuses rows that overflow
            scaled = self.components_.T * self.scale_
            with one_blas_thread():  # the same digits for any number of threads
                matrix = scaled if self.method == "pca" else scaled @ self.components_
            self._map = {"float64": matrix, "float32": matrix.astype(np.float32)}

    def apply(self, rows: Array, out: Array) -> None:
        width = str(rows.dtype).removeprefix("torch.")
        centred = rows - like(self.mean_, rows)
        linalg.namespace(rows).matmul(centred, like(self._map[width], rows), out=out)

    def revert(self, rows: Array, out: Array) -> None:
        inverse = np.divide(1.0, self.scale_, out=np.zeros_like(self.scale_), where=self.scale_ > 0)
        back = inverse[:, None] * self.components_
        if self.method == "zca":
            back = self.components_.T @ back
        out[:] = rows @ like(back, rows) + like(self.mean_, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        A = self._map["float64"].T.copy()
        return A, -A @ self.mean_


def ledoit_wolf(moments: Moments) -> float:
    """Shrinkage towards the mean eigenvalue, in [0, 1], from second and fourth moments.

    Lemma 3.4 and section 3.3 of Ledoit and Wolf, A well-conditioned estimator for
    large-dimensional covariance matrices, 2004; the sum over rows is sum ||y||^4 in closed form.
    """
    n, S = moments.count, moments.scatter / moments.weight
    square = float(np.square(S).sum())  # not vdot, whose digits depend on BLAS threads
    distance = square - float(np.trace(S)) ** 2 / len(S)
    error = max(moments.centred_fourth / moments.weight - square, 0.0) / n
    return min(error / distance, 1.0) if distance > 0 else 1.0

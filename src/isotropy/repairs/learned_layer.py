"""An affine layer trained to make frozen features isotropic for a frozen head."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, reduce
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, like
from isotropy.repairs.base import Invertible
from isotropy.sources import Source
from isotropy.stats import Moments
from isotropy.stored import Field


@public
class LearnedLayer(Invertible):
    r"""x W' + b, trained to make the rows more isotropic while a frozen head keeps its accuracy.

    Parameters
    ----------
    alpha : float
        Weight of the task's loss against that of isotropy; see `isotropy.losses.JointLoss`.
    smoothing : float
        Smoothing of the moving averages that both losses are divided by.
    n_epochs : int
        Maximum number of epochs.
    batch_size : int
        IsoScore is measured on each batch, which should have more rows than there are features.
    learning_rate : float
        Learning rate of AdamW.
    validation : float
        Share of the rows to hold out, in [0, 0.9]. After each epoch the head is scored on them,
        and the layer of the best epoch is kept, the latest one of a tie. Zero keeps the last.
    patience : int
        Stop after this many epochs without a better score.
    metric : {"accuracy", "matthews"}
        Score for classes; for numbers it is the squared error.
    random_state : int
        Seed of the split and of the order of the rows.
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    weight_ : array of shape (n_features, n_features)
    bias_ : array of shape (n_features,)
    n_epochs_ : int
        The epoch whose layer was kept.
    moments_ : Moments
        Moments of the fitted rows, for `shift`.

    Notes
    -----
    The isotropy layer of [1]_: one feed-forward layer, the joint loss with alpha = 1/2, a 70/30
    split. It does not report its batch size, learning rate or epochs. Differs from it: the layer
    is trained on centred rows in units of their deviation, which changes the steps but not the
    maps it can reach; the best epoch is a trained one, never the initial layer. Trained in
    float64; only `fit` needs the extra `train`. Affine; `inverse_transform` is the
    pseudo-inverse.

    References
    ----------
    .. [1] Optimizing the performance of text classification models by improving the isotropy of
       the embeddings using a joint loss function, anonymous, under review.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy.metrics import isoscore
    >>> X = np.random.default_rng(0).standard_normal((600, 4)) * [9.0, 1.0, 1.0, 1.0]
    >>> repair = LearnedLayer(batch_size=64).fit(X, X[:, 1] > 0)
    >>> bool(isoscore(repair.transform(X)) > 2 * isoscore(X))
    True
    """

    name = "learned-layer"
    trained = True
    learned = {
        "weight_": Field("n_features, n_features"),
        "bias_": Field("n_features"),
        "n_epochs_": Field(kind="int", low=1),
    }

    def __init__(
        self,
        alpha: float = 0.5,
        smoothing: float = 0.15,
        n_epochs: int = 50,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        validation: float = 0.3,
        patience: int = 10,
        metric: Literal["accuracy", "matthews"] = "accuracy",
        random_state: int = 0,
        normalize: bool = False,
    ) -> None:
        self.alpha = alpha
        self.smoothing = smoothing
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation = validation
        self.patience = patience
        self.metric = metric
        self.random_state = random_state
        self.normalize = normalize

    def fit(  # type: ignore[override]
        self, X: Any, y: Any = None, head: Any = None, **options: Any
    ) -> Self:
        """Fit to the rows of X and their labels; neither X nor the head is modified.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
            Frozen features; all of them are held in memory.
        y : array of shape (n_samples,)
            Classes, or floats for regression. With a head, classes are numbers from 0.
        head : torch module or (weight, bias), optional
            What reads the rows: a module from (n, n_features) to one score a class, or to one
            number; or the arrays of a linear one, of shapes (n_out, n_features) and (n_out,). By
            default a linear head is fitted to X and y first.
        **options
            `engine` and `checkpoint`, as of the other repairs.

        Returns
        -------
        self
        """
        if y is None:
            raise InputError(
                "y must be given. It requires y to be passed, but the target y is None."
            )
        self._task = (y, head)  # for the time of the fit
        try:
            return super().fit(X, **options)
        finally:
            del self._task

    def _check_params(self) -> None:
        super()._check_params()
        checks.real(self.alpha, "alpha", -np.inf)
        checks.real(self.smoothing, "smoothing", 0.0, 1.0)
        checks.integer(self.n_epochs, "n_epochs", 1)
        checks.integer(self.batch_size, "batch_size", 2)
        checks.real(self.learning_rate, "learning_rate", 0.0)
        checks.real(self.validation, "validation", 0.0, 0.9)
        checks.integer(self.patience, "patience", 1)
        checks.choice(self.metric, "metric", ("accuracy", "matthews"))
        checks.integer(self.random_state, "random_state", 0, (1 << 63) - 1)

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        from isotropy.losses import layer_training

        if source.n_features < 2:
            raise InputError("X must have at least 2 features, got 1 feature(s).")
        found = reduce(source, [Moments()], checkpoint)
        (self.moments_,) = found.states
        rows, numbers = read_all(source)
        y, head = self._task
        target = targets(y, source.n_samples)[numbers]
        mean, spread = self.moments_.mean, deviation(self.moments_)
        task = layer_training.HeadTraining(rows, target, head, mean, spread)
        weight, bias, self.n_epochs_ = layer_training.trained(task, self.get_params())
        self.weight_ = weight
        self.bias_ = mean + spread * bias - weight @ mean
        self._prepare()
        return found.n_samples

    def _check_fitted(self) -> None:
        if self.n_epochs_ > self.n_epochs:
            raise InputError(
                f"n_epochs_ must be at most n_epochs={self.n_epochs}, got {self.n_epochs_}"
            )

    def _prepare(self) -> None:
        self._back = np.linalg.pinv(self.weight_).T

    def apply(self, rows: Array, out: Array) -> None:
        out[:] = rows @ like(self.weight_.T, rows) + like(self.bias_, rows)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = (rows - like(self.bias_, rows)) @ like(self._back, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return self.weight_.copy(), self.bias_.copy()


def read_all(source: Source) -> tuple[Floats, NDArray[np.int64]]:
    """All good rows of a source in float64, and their numbers."""
    rows: list[Floats] = []
    numbers: list[NDArray[np.int64]] = []
    for chunk in source.chunks():
        for batch in source.read(chunk):
            part = linalg.to_numpy(linalg.double(batch.rows))
            rows.append(part)
            counted = batch.first_row + np.arange(len(part))
            numbers.append(counted if batch.numbers is None else batch.numbers)
    return np.concatenate(rows), np.concatenate(numbers)


def targets(y: Any, n_samples: int) -> NDArray[Any]:
    """y as an array of one finite value per row."""
    found = linalg.to_numpy(y)
    if found.shape == (n_samples, 1):
        found = found[:, 0]
    if found.shape != (n_samples,):
        raise InputError(
            f"y must have one value per row, got shape {found.shape} for {n_samples} rows."
        )
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise InputError("y must be finite. Input y contains NaN or infinity.")
    return found


def deviation(moments: Moments) -> float:
    """Root mean square deviation of a dimension, or one if nothing varies."""
    variance = float(np.trace(moments.scatter)) / moments.weight / len(moments.mean)
    return variance**0.5 if variance > 0 else 1.0

"""Repairs that are trained by gradient descent: a normalising flow, and an affine layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, reduce
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, like
from isotropy.losses import defaults
from isotropy.repairs.base import Invertible
from isotropy.repairs.centering import Standardize
from isotropy.repairs.drift import held_out
from isotropy.repairs.shift import spread
from isotropy.sources import Source
from isotropy.stats import BlockSums, Moments
from isotropy.stored import Field

START_ROWS = 4096  # from which ActNorm is initialised
LARGEST_SEED = (1 << 63) - 1  # of torch


@dataclass(eq=False, repr=False)
class Flow(Invertible):
    r"""Standardise the rows, then map them to a Gaussian with an invertible network.

    Parameters
    ----------
    n_levels, n_steps, hidden : int
        Shape of the network; see `isotropy.losses.FlowNetwork`.
    n_epochs : int
        Passes over the rows.
    batch_size : int
    learning_rate : float
        Learning rate of Adam.
    random_state : int
        Seed of the initial weights and of the order of the rows.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (n_features,)
        Mean and standard deviation of each dimension.
    weights_ : array of shape (n_weights,)
        All weights of the network, in its order.

    Notes
    -----
    Li et al., On the sentence embeddings from pre-trained language models, 2020: the log-likelihood
    of the rows is maximised, with Adam at 1e-3 in batches of 32 for one epoch. Differs from it:
    rows are first standardised by the moments of all of them, and ActNorm is initialised from the
    first 4,096. Trained in float64; needs the extra `train`. Chunks are read in random order and
    shuffled inside, so that only one is in memory at a time. Not affine.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9.0, 1.0, 1.0, 0.1] + 5
    >>> repair = Flow().fit(X)
    >>> bool(np.abs(repair.inverse_transform(repair.transform(X)) - X).max() < 1e-9)
    True
    """

    name = "flow"
    trained = True
    learned = {
        "mean_": Field("n_features"),
        "scale_": Field("n_features", low=0, above=True),
        "weights_": Field("n_weights"),
    }

    n_levels: int = 3
    n_steps: int = 3
    hidden: int = 32
    n_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 1e-3
    random_state: int = 0
    normalize: bool = False

    def _check_params(self) -> None:
        super()._check_params()
        for option in ("n_levels", "n_steps", "hidden", "n_epochs", "batch_size"):
            checks.integer(getattr(self, option), option, 1)
        checks.real(self.learning_rate, "learning_rate", 0.0)
        checks.integer(self.random_state, "random_state", 0, LARGEST_SEED)

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        from isotropy.losses import base

        statistics: list[Any] = [Moments(), BlockSums(source.n_samples)]
        done = reduce(source, statistics, checkpoint)
        moments, blocks = done.states
        self.held_out_ = held_out(blocks)
        found = Standardize().fit_statistic(moments)
        self.moments_, self.mean_, self.scale_ = moments, found.mean_, found.scale_
        random = np.random.default_rng(self.random_state)
        start, _ = next(self._batches(source, START_ROWS, random))
        network = self._network().double().to(source.device)
        epochs = (self._batches(source, self.batch_size, random) for _ in range(self.n_epochs))
        base.maximise_likelihood(network, start, chain(*epochs), self.learning_rate)
        self.weights_ = base.weights(network)
        if not np.isfinite(self.weights_).all():
            raise InputError(
                f"the training diverged at learning_rate={self.learning_rate:g}. Lower it."
            )
        self._prepare()
        return done.n_samples

    def _network(self) -> Any:
        from isotropy.losses.base import seeded
        from isotropy.losses.flow import FlowNetwork

        with seeded(self.random_state):
            return FlowNetwork(self.n_features_in_, self.n_levels, self.n_steps, self.hidden)

    def _batches(
        self, source: Source, size: int, random: np.random.Generator
    ) -> Iterator[tuple[Array, Array | None]]:
        """(standardised rows, weights) of one pass, without rows of zero weight."""
        chunks = source.chunks()
        for i in random.permutation(len(chunks)):
            for batch in source.read(chunks[i]):
                weights = batch.weights
                kept = np.arange(len(batch.rows)) if weights is None else np.flatnonzero(weights)
                order = random.permutation(kept)
                for start in range(0, len(order), size):
                    part = order[start : start + size]
                    rows = batch.rows[linalg.index(part, batch.rows)]
                    yield self._standard(rows), None if weights is None else weights[part]

    def _standard(self, rows: Array) -> Array:
        return (rows - like(self.mean_, rows)) / like(self.scale_, rows)

    def _sizes(self) -> dict[str, int]:
        sizes = (self.n_features_in_, self.n_levels, self.n_steps, self.hidden)
        return super()._sizes() | {"n_weights": n_weights(*sizes)}

    def _prepare(self) -> None:
        """Keep the network in both dtypes: building it takes longer than applying it to a row."""
        from isotropy.losses.base import with_weights

        network = with_weights(self._network(), self.weights_)
        self._networks = {"float64": network, "float32": copy.deepcopy(network).float()}

    def _network_for(self, rows: Array) -> Any:
        network = self._networks[str(rows.dtype).removeprefix("torch.")]
        return copy.deepcopy(network).to(rows.device) if checks.is_tensor(rows) else network

    def apply(self, rows: Array, out: Array) -> None:
        from isotropy.losses.base import tensor

        z, _ = self._network_for(rows)(tensor(self._standard(rows)))
        out[:] = like(z, out)

    def revert(self, rows: Array, out: Array) -> None:
        from isotropy.losses.base import tensor

        back = like(self._network_for(rows).inverse(tensor(rows)), rows)
        out[:] = back * like(self.scale_, rows) + like(self.mean_, rows)


def n_weights(d: int, n_levels: int, n_steps: int, hidden: int) -> int:
    """Number of weights of a network of this shape, without building what a file asks for."""
    found, width = 0, d
    for _ in range(min(n_levels, d.bit_length() - 1)):
        half = width // 2
        shift = (half + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * (width - half)
        found += n_steps * (2 * width + shift)
        width = half
    return found


@public
@dataclass(eq=False, repr=False)
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
        Learning rate of AdamW. The default is that of `isotropy train`, for some hundred features;
        fewer features need a higher one.
    validation : float
        Share of the rows to hold out, in [0, 0.9]. After each epoch the head is scored on them,
        and the layer of the best epoch is kept, the latest one of a tie. Zero keeps the last.
    patience : int
        Stop after this many epochs without a better score.
    metric : {"accuracy", "matthews"}
        Score for classes; for numbers it is the squared error.
    random_state : int
        Seed of the split and of the order of the rows.

    Attributes
    ----------
    weight_ : array of shape (n_features, n_features)
    bias_ : array of shape (n_features,)
    n_epochs_ : int
        The epoch whose layer was kept.

    Notes
    -----
    The layer of the paper that `isotropy.losses.IsotropyLayer` cites: one feed-forward layer, the
    joint loss with alpha = 1/2, a 70/30 split. The paper does not report its batch size, learning
    rate or epochs. Differs from it: the layer is trained on centred rows in units of their
    deviation, which changes the steps but not the maps it can reach; the best epoch is a trained
    one, never the initial layer. Trained in float64; only `fit` needs the extra `train`. Affine;
    `inverse_transform` is the pseudo-inverse.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy.metrics import isoscore
    >>> X = np.random.default_rng(0).standard_normal((600, 4)) * [9.0, 1.0, 1.0, 1.0]
    >>> repair = LearnedLayer(batch_size=64, learning_rate=0.01).fit(X, X[:, 1] > 0)
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

    alpha: float = defaults.ALPHA
    smoothing: float = defaults.SMOOTHING
    n_epochs: int = defaults.LAYER_EPOCHS
    batch_size: int = defaults.LAYER_BATCH
    learning_rate: float = defaults.LAYER_LR
    validation: float = 0.3
    patience: int = defaults.PATIENCE
    metric: Literal["accuracy", "matthews"] = "accuracy"
    random_state: int = 0
    normalize: bool = False

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
        statistics: list[Any] = [Moments(), BlockSums(source.n_samples)]
        found = reduce(source, statistics, checkpoint)
        self.moments_, blocks = found.states
        self.held_out_ = held_out(blocks)
        rows, numbers = read_all(source)
        y, head = self._task
        target = targets(y, source.n_samples)[numbers]
        mean, variance = self.moments_.mean, spread(self.moments_) / source.n_features
        deviation = variance**0.5 if variance > 0 else 1.0
        task = layer_training.HeadTraining(rows, target, head, mean, deviation)
        weight, bias, self.n_epochs_ = layer_training.trained(task, self.get_params())
        self.weight_ = weight
        self.bias_ = mean + deviation * bias - weight @ mean
        self._prepare()
        return found.n_samples

    def _check_fitted(self) -> None:
        if self.n_epochs_ > self.n_epochs:
            raise InputError(
                f"n_epochs_ must be at most n_epochs={self.n_epochs}, got {self.n_epochs_}"
            )

    def _prepare(self) -> None:
        self._back = np.linalg.pinv(self.weight_).T
        self._centre = np.zeros(len(self.bias_)) if self.moments_ is None else self.moments_.mean
        self._rest = self.bias_ + self.weight_ @ self._centre

    def apply(self, rows: Array, out: Array) -> None:
        centred = rows - like(self._centre, rows)  # keeps the digits of rows far from zero
        out[:] = centred @ like(self.weight_.T, rows) + like(self._rest, rows)

    def revert(self, rows: Array, out: Array) -> None:
        out[:] = (rows - like(self._rest, rows)) @ like(self._back, rows)
        out[:] += like(self._centre, rows)

    def affine_form(self) -> tuple[Floats, Floats]:
        return self.weight_.copy(), self.bias_.copy()


def read_all(source: Source) -> tuple[Floats, NDArray[np.int64]]:
    """All good rows of a source in float64, and their numbers."""
    rows: list[Floats] = []
    numbers: list[NDArray[np.int64]] = []
    for batch in chain.from_iterable(map(source.read, source.chunks())):
        rows.append(linalg.to_numpy(linalg.double(batch.rows)))
        counted = batch.first_row + np.arange(len(batch.rows))
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

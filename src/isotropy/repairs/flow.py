"""Map the rows to a Gaussian space with a normalising flow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, reduce
from isotropy.errors import InputError
from isotropy.linalg import like
from isotropy.repairs.base import Invertible
from isotropy.repairs.standardize import Standardize
from isotropy.sources import Source
from isotropy.stats import Moments
from isotropy.stored import Field

START_ROWS = 4096  # from which ActNorm is initialised
LARGEST_SEED = (1 << 63) - 1  # of torch


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
    normalize : bool
        Scale the repaired rows to length one; zero rows stay zero.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (n_features,)
        Mean and standard deviation of each dimension.
    weights_ : array of shape (n_weights,)
        All weights of the network, in its order.
    moments_ : Moments
        Moments of the fitted rows, for `shift`.

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

    def __init__(
        self,
        n_levels: int = 3,
        n_steps: int = 3,
        hidden: int = 32,
        n_epochs: int = 1,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        random_state: int = 0,
        normalize: bool = False,
    ) -> None:
        self.n_levels = n_levels
        self.n_steps = n_steps
        self.hidden = hidden
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.normalize = normalize

    def _check_params(self) -> None:
        super()._check_params()
        for option in ("n_levels", "n_steps", "hidden", "n_epochs", "batch_size"):
            checks.integer(getattr(self, option), option, 1)
        checks.real(self.learning_rate, "learning_rate", 0.0)
        checks.integer(self.random_state, "random_state", 0, LARGEST_SEED)

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        from isotropy.losses import base

        done = reduce(source, [Moments()], checkpoint)
        (moments,) = done.states
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
                for part in split(random.permutation(kept), size):
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


def split(numbers: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Parts of `size` numbers; the last one may be shorter."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]

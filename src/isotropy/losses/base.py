"""Shared by losses and trained repairs: full precision, sums over processes, seeded training."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from isotropy import checks
from isotropy.checks import Array, is_tensor
from isotropy.errors import InputError, MissingExtraError
from isotropy.linalg import Floats

try:
    import torch
    import torch.distributed
    from torch.nn.utils import vector_to_parameters
except ImportError as error:
    raise MissingExtraError(
        'isotropy.losses needs torch, which is not installed. Run: pip install "isotropy[train]".'
    ) from error


def distributed() -> bool:
    """Whether there are other processes to sum over."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def summed(tensor: Any) -> Any:
    """The sum of a tensor over all processes; the tensor itself if there is only one."""
    if not distributed():
        return tensor
    total = tensor.clone()
    torch.distributed.all_reduce(total)
    return total


def centred(X: Any) -> tuple[float, Any, Any]:
    """(number of rows in all processes, their mean, these rows less the mean)."""
    count = float(X.shape[0])
    if distributed():
        count = float(summed(torch.tensor(count, dtype=torch.float64, device=X.device)))
    mean = summed(X.sum(dim=0)) / count
    return count, mean, X - mean


def scatter(X: Any) -> tuple[float, Any]:
    """(number of rows in all processes, the sum of their centred products)."""
    count, _, Y = centred(X)
    return count, summed(Y.T @ Y)


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """function(X, ...) without autocast, with X checked and in float32 or float64."""

    @functools.wraps(function)
    def wrapped(X: Any, *args: Any, **kwargs: Any) -> Any:
        rows = matrix(X)
        with torch.autocast(rows.device.type, enabled=False):
            return function(rows, *args, **kwargs)

    return wrapped


def matrix(X: Any) -> Any:
    """X, which must be a two-dimensional tensor, in float32 or float64."""
    if not isinstance(X, torch.Tensor):
        raise InputError(f"X must be a torch tensor, got {type(X).__name__}.")
    X = checks.matrix(X)
    return X if X.dtype in (torch.float32, torch.float64) else X.float()


def several_rows(n_rows: float) -> None:
    """Raise unless there are at least two rows."""
    if n_rows < 2:
        raise InputError(
            f"X must have at least 2 rows, got {n_rows:g}. Use larger batches, and drop_last=True."
        )


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make random draws on the CPU depend on the seed only, and leave the global state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tensor(rows: Array) -> Any:
    """rows as a tensor on their device; arrays, which may be read-only, are copied."""
    return rows if is_tensor(rows) else torch.tensor(rows)


def maximise_likelihood(
    flow: Any, start: Array, batches: Iterable[tuple[Array, Array | None]], learning_rate: float
) -> None:
    """Adam on the log-likelihood of batches of (rows, weights); ActNorm starts from `start`."""
    if not any(True for _ in flow.parameters()):  # with one column
        return
    with torch.no_grad():
        flow(tensor(start).double())
    optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)
    for rows, weights in batches:
        losses = -flow.log_prob(tensor(rows).double())
        if weights is not None:
            share = tensor(weights).to(losses)
            losses = losses * share * len(share) / share.sum()
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def weights(network: Any) -> Floats:
    """All parameters of a network in one array."""
    parts = (part.detach().cpu().double().numpy().ravel() for part in network.parameters())
    return np.concatenate([np.empty(0), *parts])


def with_weights(network: Any, values: Floats) -> Any:
    """The network with these parameters, in float64, for inference."""
    n_weights = sum(part.numel() for part in network.parameters())
    if np.shape(values) != (n_weights,):
        raise ValueError(f"the network has {n_weights} weights, got {np.size(values)}")
    network = network.double().eval().requires_grad_(False)
    vector_to_parameters(torch.tensor(values, dtype=torch.float64), network.parameters())
    return network

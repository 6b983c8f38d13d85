"""How the networks of repairs are trained and kept: seeded, in float64, as plain arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from isotropy.checks import Array, is_tensor
from isotropy.linalg import Floats


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is drawn on the CPU within depends on the seed alone, and changes nothing outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tensor(rows: Array) -> Any:
    """rows as a tensor where they lie; arrays, which may be read-only, are copied."""
    return rows if is_tensor(rows) else torch.tensor(rows)


def maximise_likelihood(
    flow: Any, start: Array, batches: Iterable[tuple[Array, Array | None]], learning_rate: float
) -> None:
    """Adam on the log-likelihood of batches of (rows, weights), from where `start` puts ActNorm."""
    if not any(True for _ in flow.parameters()):  # of one column
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
    """The network with these parameters, in float64, for use and not for training."""
    n_weights = sum(part.numel() for part in network.parameters())
    if np.shape(values) != (n_weights,):
        raise ValueError(f"the network has {n_weights} weights, got {np.size(values)}")
    network = network.double().eval().requires_grad_(False)
    vector_to_parameters(torch.tensor(values, dtype=torch.float64), network.parameters())
    return network

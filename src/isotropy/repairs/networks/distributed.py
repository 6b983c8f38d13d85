"""Sums over the processes of a distributed run, so that each sees the statistics of all rows."""

from __future__ import annotations

from typing import Any

import torch.distributed


def distributed() -> bool:
    """Whether there are other processes to sum over."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def summed(tensor: Any) -> Any:
    """The sum of a tensor over all processes; the tensor itself where there is but one."""
    if not distributed():
        return tensor
    total = tensor.clone()
    torch.distributed.all_reduce(total)
    return total


def centred(X: Any) -> tuple[float, Any, Any]:
    """(rows of all processes, their mean, these rows less it)."""
    count = float(X.shape[0])
    if distributed():
        count = float(summed(torch.tensor(count, dtype=torch.float64, device=X.device)))
    mean = summed(X.sum(dim=0)) / count
    return count, mean, X - mean


def scatter(X: Any) -> tuple[float, Any]:
    """(rows of all processes, the sum of their centred products)."""
    count, _, Y = centred(X)
    return count, summed(Y.T @ Y)

"""Losses leave autocast: half precision cannot hold the sums that they are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from isotropy import checks
from isotropy.errors import InputError


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """function(X, ...) outside of autocast, with X checked and in float32 or float64."""

    @functools.wraps(function)
    def wrapped(X: Any, *args: Any, **kwargs: Any) -> Any:
        rows = matrix(X, function.__name__)
        with torch.autocast(rows.device.type, enabled=False):
            return function(rows, *args, **kwargs)

    return wrapped


def matrix(X: Any, caller: str) -> Any:
    """X, which must be a two-dimensional tensor, in float32 at least."""
    if not isinstance(X, torch.Tensor):
        raise InputError(f"{caller}: X must be a torch tensor, got {type(X).__name__}.")
    X = checks.matrix(X, caller)
    return X if X.dtype in (torch.float32, torch.float64) else X.float()


def several_rows(n_rows: float, caller: str) -> None:
    """Raise unless there are two rows or more."""
    if n_rows < 2:
        raise InputError(
            f"{caller}: X must have at least 2 rows, got {n_rows:g}. Use larger batches, and "
            "drop_last=True for the rest."
        )

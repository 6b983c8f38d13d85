"""Logarithm of the partition function along directions."""

from __future__ import annotations

from typing import Any

import torch

from isotropy.errors import InputError
from isotropy.repairs.networks.precision import full_precision


@full_precision
def log_partition(X: Any, directions: Any = None) -> Any:
    r"""log F(u) and log F(-u), F(u) = sum_x exp(u.x), for every direction; differentiable.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
    directions : tensor of shape (n_features, n_directions), optional
        Unit vectors as columns; by default the eigenvectors of X'X, taken as fixed: no gradient
        flows through them.

    Returns
    -------
    tensor of shape (2, n_directions)
        The least of them less the largest is log I(W), as in `isotropy.metrics`
        `partition_isotropy(X, log=True)`; the difference the other way is a loss.

    Examples
    --------
    >>> import torch
    >>> logs = log_partition(torch.tensor([[1000.0, 0.0], [1000.0, 0.0]]))
    >>> (logs.min() - logs.max()).item()
    -2000.0
    """
    if directions is None:
        rows = X.detach().double()
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors
    if directions.ndim != 2 or directions.shape[0] != X.shape[1]:
        raise InputError(
            f"log_partition: directions must be columns of {X.shape[1]} values, got shape "
            f"{tuple(directions.shape)}."
        )
    scores = X @ directions.to(X)
    return torch.stack([scores.logsumexp(dim=0), (-scores).logsumexp(dim=0)])

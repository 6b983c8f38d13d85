"""Mean cosine over all pairs of rows, in time linear in the rows."""

from __future__ import annotations

from typing import Any

import torch

from isotropy.errors import InputError
from isotropy.repairs.networks.precision import full_precision, several_rows


@full_precision
def mean_cosine(X: Any) -> Any:
    r"""Mean cosine over all pairs of different rows, in [-1, 1], differentiable.

    (||s||^2 - n)/(n (n - 1)) with s the sum of unit rows: O(n d), never the n x n cosines.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
        At least two rows that are not zero.

    Notes
    -----
    The value of `isotropy.metrics.mean_cosine`. The cosine regulariser of Gao et al. 2019 divides
    by n^2: it is (n - 1)/n of this. Zero rows have no direction: they are left out, and get
    gradient zero.

    Examples
    --------
    >>> import torch
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 0.0]]))
    tensor(0.3333)
    """
    several_rows(X.shape[0], "mean_cosine")
    norms = torch.linalg.vector_norm(X, dim=1)
    directed = norms > 0
    n = int(directed.sum())
    if n < 2:
        raise InputError(f"mean_cosine: X must have at least 2 rows that are not zero, got {n}.")
    total = torch.where(directed, 1 / torch.where(directed, norms, 1.0), 0.0) @ X
    return (total @ total - n) / (n * (n - 1))

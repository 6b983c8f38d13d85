"""A covariance that remembers earlier batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isotropy import checks
from isotropy.repairs.networks.distributed import scatter
from isotropy.repairs.networks.precision import matrix, several_rows


class RunningCovariance(nn.Module):
    r"""Exponential moving mean of the covariances of batches, corrected for its start at zero.

    Called with a batch in training it takes it in; it always returns the covariance so far, for
    `isoscore_star`. Before the first batch that is zero.

    Parameters
    ----------
    d : int
    momentum : float
        Weight of a new batch, in (0, 1].

    Notes
    -----
    Covariances are divided by n - 1. In a distributed run a batch is that of all processes.

    Examples
    --------
    >>> import torch
    >>> running = RunningCovariance(2, momentum=0.5)
    >>> running(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    tensor([[2., 0.], [0., 0.]])
    """

    def __init__(self, d: int, momentum: float = 0.05) -> None:
        super().__init__()
        name = type(self).__name__
        checks.integer(d, "d", name, 1)
        self.momentum = checks.real(momentum, "momentum", name, 1e-12, 1.0)
        self.register_buffer("total", torch.zeros(d, d))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(self, X: Any) -> Any:
        if self.training:
            name = type(self).__name__
            rows = matrix(X, name)
            checks.n_features(rows, len(self.total), name)
            with torch.autocast(rows.device.type, enabled=False):
                count, products = scatter(rows)
            several_rows(count, name)
            self.total.lerp_((products / (count - 1)).to(self.total), self.momentum)
            self.weight.lerp_(torch.ones_like(self.weight), self.momentum)
        return self.covariance

    @property
    def covariance(self) -> Any:
        """The mean of the covariances of all batches, of shape (d, d)."""
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

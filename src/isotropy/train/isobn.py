"""Isotropic batch normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isotropy import checks
from isotropy.repairs.networks.distributed import scatter
from isotropy.repairs.networks.precision import matrix, several_rows


class IsoBatchNorm(nn.Module):
    r"""Scale every dimension down by how much it varies, and how much with others.

    x_i s_i with s_i = (gamma_i sigma_i + eps)^(-beta), gamma_i = mean_j rho_ij^2 over the
    correlations rho, all s_i then scaled alike so that the total variance stays. The statistics are
    moving means over batches; the scale is not differentiated, and nothing is centred.

    Parameters
    ----------
    d : int
    momentum : float
        Weight of a new batch in the covariance and the deviations, in (0, 1].
    eps, beta : float

    Notes
    -----
    Zhou, Lin and Ren, IsoBN: fine-tuning BERT with isotropic batch normalization, 2021, with the
    constants of its released code. Differs from it: moving means are corrected for their start at
    zero (without that correlations are 20 times too large at the first step, and clipped); they
    are buffers, so a checkpoint holds them; in eval before the first step it is the identity, and
    a dimension that does not vary correlates with none, where the code gives NaN; in a distributed
    run a batch is that of all processes.

    Examples
    --------
    >>> import torch
    >>> X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> X[:, 0] *= 9
    >>> before, after = X.var(dim=0), IsoBatchNorm(3)(X).var(dim=0)
    >>> bool(before[0] / before[1] > 50), bool(after[0] / after[1] < 12)
    (True, True)
    """

    def __init__(
        self, d: int, momentum: float = 0.05, eps: float = 1e-3, beta: float = 0.5
    ) -> None:
        super().__init__()
        name = type(self).__name__
        checks.integer(d, "d", name, 1)
        self.momentum = checks.real(momentum, "momentum", name, 1e-12, 1.0)
        self.eps = checks.real(eps, "eps", name, 1e-12)
        self.beta = checks.real(beta, "beta", name, 0.0)
        self.register_buffer("covariance", torch.zeros(d, d))
        self.register_buffer("deviation", torch.zeros(d))
        self.register_buffer("weight", torch.zeros(()))  # sum of the weights of all batches so far

    def forward(self, x: Any) -> Any:
        if self.training:
            self._update(x.detach())
        return x * self.scale().to(x.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _update(self, x: Any) -> None:
        name = type(self).__name__
        rows = matrix(x, name)
        checks.n_features(rows, len(self.deviation), name)
        with torch.autocast(rows.device.type, enabled=False):
            count, products = scatter(rows)
        several_rows(count, name)
        covariance = (products / count).to(self.covariance)
        self.covariance.lerp_(covariance, self.momentum)
        self.deviation.lerp_(covariance.diagonal().sqrt(), self.momentum)
        self.weight.lerp_(torch.ones_like(self.weight), self.momentum)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def scale(self) -> Any:
        """The factor of every dimension, of shape (d,); one before the first step."""
        weight = torch.where(self.weight > 0, self.weight, 1.0)
        covariance, deviation = self.covariance / weight, self.deviation / weight
        products = torch.outer(deviation, deviation)
        varying = products > 0
        rho = torch.where(varying, covariance / torch.where(varying, products, 1.0), 0.0)
        gamma = (rho.clamp(-1, 1) ** 2).mean(dim=1)
        scale = (gamma * deviation + self.eps) ** -self.beta
        variance = covariance.diagonal()
        before, after = variance.sum(), (variance * scale**2).sum()
        kept = (before / torch.where(after > 0, after, 1.0)).sqrt()
        return torch.where(self.weight > 0, scale * torch.where(after > 0, kept, 1.0), 1.0)

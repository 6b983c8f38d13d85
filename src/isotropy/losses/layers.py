"""Layers and the joint loss: the isotropy layer, IsoBN, a running covariance."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import nn

from isotropy import checks
from isotropy.errors import public
from isotropy.losses.base import matrix, scatter, several_rows, summed
from isotropy.losses.defaults import ALPHA, EPS, MOMENTUM, SMOOTHING

Variant = Literal["frozen", "joint", "alternating"]


@public
class IsotropyLayer(nn.Module):
    r"""W x + b, which starts as the identity; deeper layers add V relu(h) + c to their input.

    Parameters
    ----------
    d : int
        Width of input and output.
    depth : int
        Number of linear maps. The paper has one, which is affine.

    Notes
    -----
    Section 3.2 of [1]_, which leaves deeper networks to later work. Every further map starts at
    zero and is added, so the layer starts as the identity at any depth, and a frozen head sees
    what it was trained on.

    References
    ----------
    .. [1] Optimizing the performance of text classification models by improving the isotropy of
       the embeddings using a joint loss function, anonymous, under review.

    Examples
    --------
    >>> import torch
    >>> IsotropyLayer(2, depth=3)(torch.tensor([[1.0, -2.0]])).detach()
    tensor([[ 1., -2.]])
    """

    def __init__(self, d: int, depth: int = 1) -> None:
        super().__init__()
        checks.integer(d, "d", 1)
        checks.integer(depth, "depth", 1)
        self.linear = nn.Linear(d, d)
        self.added = nn.ModuleList([nn.Linear(d, d) for _ in range(depth - 1)])
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        for part in self.added:
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        for part in self.added:
            x = x + part(x.relu())
        return x


@public
def freeze(layer: Any, head: Any, variant: Variant = "frozen", epoch: int = 0) -> None:
    """Let an isotropy layer, its head or both learn, and freeze the other.

    Parameters
    ----------
    layer, head : torch modules
    variant : {"frozen", "joint", "alternating"}
        The head never learns; it learns with the layer; or they take turns, the layer in even
        epochs and the head in odd ones.
    epoch : int
        Counted from zero; if they alternate, call this at the start of each epoch.

    Notes
    -----
    The paper of `IsotropyLayer` trains with a frozen head; section 4.4 proposes the other two.
    """
    checks.choice(variant, "variant", ("frozen", "joint", "alternating"))
    turn = checks.integer(epoch, "epoch", 0) % 2 == 1
    head.requires_grad_(variant == "joint" or (variant == "alternating" and turn))
    layer.requires_grad_(variant != "alternating" or not turn)


@public
class JointLoss(nn.Module):
    r"""alpha L1 + (1 - alpha) L2, each loss divided by its own moving mean.

    L_i counts as L_i m / (|m_i| + eps) with m_i its moving mean and m the mean of |m_1| and |m_2|,
    none of which is differentiated. m_i starts with the first batch; at step k a new loss enters it
    with weight smoothing/(1 + k).

    Parameters
    ----------
    alpha : float
        Weight of the task's loss. Outside [0, 1] one of the two weights is negative, which pushes
        that loss up.
    smoothing : float
    eps : float

    Notes
    -----
    Equations 2 and 3 of the paper of `IsotropyLayer`, which has alpha = 1/2. Differs from it:
    |m_i| + eps instead of m_i, so that a loss of zero or below keeps its sign. The means are
    buffers, don't change in eval, and are over all processes in a distributed run.

    Examples
    --------
    >>> import torch
    >>> loss = JointLoss()
    >>> loss(torch.tensor(4.0), torch.tensor(2.0))
    tensor(3.)
    >>> loss(torch.tensor(2.0), torch.tensor(2.0))
    tensor(2.2500)
    """

    def __init__(
        self, alpha: float = ALPHA, smoothing: float = SMOOTHING, eps: float = 1e-8
    ) -> None:
        super().__init__()
        self.alpha = checks.real(alpha, "alpha", -math.inf)
        self.smoothing = checks.real(smoothing, "smoothing", 0.0, 1.0)
        self.eps = checks.real(eps, "eps", 0.0)
        self.register_buffer("means", torch.ones(2))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, task_loss: Any, isotropy_loss: Any) -> Any:
        losses = torch.stack([task_loss, isotropy_loss])
        found = losses.detach().to(self.means)
        if self.training:
            found = summed(found) / summed(torch.ones_like(found))
            self.means.copy_(torch.where(self.step == 0, found, self.means))
        sizes = self.means.abs()
        task, isotropy = losses * sizes.mean() / (sizes + self.eps)
        if self.training:
            self.means.lerp_(found, self.smoothing / (1 + self.step).to(found))
            self.step += 1
        return self.alpha * task + (1 - self.alpha) * isotropy


@public
class IsoBatchNorm(nn.Module):
    r"""Scale every dimension down by how much it varies and correlates with others.

    x_i s_i with s_i = (gamma_i sigma_i + eps)^(-beta), gamma_i = mean_j rho_ij^2 over the
    correlations rho; then all s_i are multiplied by the factor that keeps the total variance. The
    statistics are moving means over batches; the scale is not differentiated, and rows are not
    centred.

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
    zero (otherwise correlations are 20 times too large at the first step, and clipped); they are
    buffers, so a checkpoint holds them; in eval before the first step it is the identity, and a
    dimension that doesn't vary correlates with none, both NaN in that code; in a distributed run a
    batch is that of all processes.

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
        self, d: int, momentum: float = MOMENTUM, eps: float = EPS, beta: float = 0.5
    ) -> None:
        super().__init__()
        checks.integer(d, "d", 1)
        self.momentum = checks.real(momentum, "momentum", 1e-12, 1.0)
        self.eps = checks.real(eps, "eps", 1e-12)
        self.beta = checks.real(beta, "beta", 0.0)
        self.register_buffer("covariance", torch.zeros(d, d))
        self.register_buffer("deviation", torch.zeros(d))
        self.register_buffer("weight", torch.zeros(()))  # sum of the weights of all batches so far

    def forward(self, x: Any) -> Any:
        if self.training:
            self._update(x.detach())
        return x * self.scale().to(x.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _update(self, x: Any) -> None:
        count, products = _scatter(x, len(self.deviation))
        covariance = (products / count).to(self.covariance)
        self.covariance.lerp_(covariance, self.momentum)
        self.deviation.lerp_(covariance.diagonal().sqrt(), self.momentum)
        self.weight.lerp_(torch.ones_like(self.weight), self.momentum)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def scale(self) -> Any:
        """The factor for every dimension, of shape (d,); one before the first step."""
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


@public
class RunningCovariance(nn.Module):
    r"""Exponential moving mean of the covariances of batches, corrected for its start at zero.

    In training a call adds the batch. It always returns the covariance so far, for
    `isoscore_star`; before the first batch that is zero.

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
        checks.integer(d, "d", 1)
        self.momentum = checks.real(momentum, "momentum", 1e-12, 1.0)
        self.register_buffer("total", torch.zeros(d, d))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(self, X: Any) -> Any:
        if self.training:
            count, products = _scatter(X, len(self.total))
            self.total.lerp_((products / (count - 1)).to(self.total), self.momentum)
            self.weight.lerp_(torch.ones_like(self.weight), self.momentum)
        return self.covariance

    @property
    def covariance(self) -> Any:
        """The mean of the covariances of all batches, of shape (d, d)."""
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)


def _scatter(X: Any, d: int) -> tuple[float, Any]:
    """`scatter` of a batch of width d, in full precision."""
    rows = matrix(X)
    checks.width(rows.shape[1], d)
    with torch.autocast(rows.device.type, enabled=False):
        count, products = scatter(rows)
    several_rows(count)
    return count, products

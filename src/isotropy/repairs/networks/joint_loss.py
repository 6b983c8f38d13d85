"""The joint loss: a task's loss and an isotropy loss, brought to one scale."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from isotropy import checks
from isotropy.repairs.networks.distributed import summed


class JointLoss(nn.Module):
    r"""alpha L1 + (1 - alpha) L2, each loss divided by its own moving mean.

    L_i counts as L_i m / (|m_i| + eps) with m_i its moving mean and m the mean of |m_1| and |m_2|,
    none of which is differentiated. At step k a new loss enters m_i with weight smoothing/(1 + k);
    the first batch is the start.

    Parameters
    ----------
    alpha : float
        Weight of the task's loss. Outside of [0, 1] one of the two weights is negative, which
        pushes that loss up.
    smoothing : float
    eps : float

    Notes
    -----
    Equations 2 and 3 of [1]_, which has alpha = 1/2. Differs from it: |m_i| + eps in place of m_i,
    so that a loss of zero or below keeps its sign. The means are buffers, stay as they are in eval,
    and are means over all processes in a distributed run.

    References
    ----------
    .. [1] Optimizing the performance of text classification models by improving the isotropy of
       the embeddings using a joint loss function, anonymous, under review.

    Examples
    --------
    >>> import torch
    >>> loss = JointLoss()
    >>> loss(torch.tensor(4.0), torch.tensor(2.0))
    tensor(3.)
    >>> loss(torch.tensor(2.0), torch.tensor(2.0))
    tensor(2.2500)
    """

    def __init__(self, alpha: float = 0.5, smoothing: float = 0.15, eps: float = 1e-8) -> None:
        super().__init__()
        self.alpha = checks.real(alpha, "alpha", "JointLoss", -math.inf)
        self.smoothing = checks.real(smoothing, "smoothing", "JointLoss", 0.0, 1.0)
        self.eps = checks.real(eps, "eps", "JointLoss", 0.0)
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

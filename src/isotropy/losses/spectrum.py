"""Spectrum control: a penalty that draws singular values towards a slow decay."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from isotropy import checks
from isotropy.errors import public
from isotropy.losses.base import full_precision

Decay = Literal["polynomial", "exponential"]

UNRESOLVED = 1e-7  # singular values below this share of the largest are rounding errors
BLOCKS = 4  # of columns of a Gram matrix, half of which aren't computed
ROWS = 4096  # made float64 at a time
EXACT = 1e-6  # largest relative error of the gradient


@public
@full_precision
def spectrum_penalty(
    W: Any, decay: Decay = "polynomial", *, c1: float, gamma: float, c2: float = 1.0
) -> Any:
    r"""sum_k (sigma_k - t_k)^2 over the min(n, d) singular values of W, at least 0, differentiable.

    t_k = c1 k^gamma for polynomial decay, c1 exp(-c2 k^gamma) for exponential decay, k from 1.

    Parameters
    ----------
    W : tensor of shape (n_samples, n_features)
    decay : {"polynomial", "exponential"}
    c1 : float
        Scale of the targets, above zero.
    gamma : float
        Rate of decay: below zero for polynomial, above zero for exponential.
    c2 : float
        Above zero; used by exponential decay only.

    Notes
    -----
    The two penalties of section 3 in Ding et al. 2022, after Wang et al. 2020. The value depends on
    singular values alone, so the gradient is U f'(sigma) V', with no 1/(sigma_i - sigma_j). Both
    come from the smaller Gram matrix, summed and decomposed in float64; the gradient's one product
    is in float64 too, unless single precision gives it to 1e-6. Equal singular values have no order
    and the penalty has a kink: there the gradient is that of the mean of their targets. Directions
    of singular values below 1e-7 of the largest are rounding errors, and get gradient zero.

    Examples
    --------
    >>> import torch
    >>> W = torch.diag(torch.tensor([3.0, 1.0])).requires_grad_()
    >>> penalty = spectrum_penalty(W, c1=2.0, gamma=-1.0)
    >>> penalty.backward()
    >>> penalty.detach(), W.grad
    (tensor(1.), tensor([[2., 0.], [0., 0.]]))
    """
    targets = _targets(min(W.shape), decay, c1, c2, gamma).to(W.device)
    return _Penalty.apply(W, targets)


def _targets(n: int, decay: str, c1: float, c2: float, gamma: float) -> Any:
    checks.choice(decay, "decay", ("polynomial", "exponential"))
    c1 = checks.real(c1, "c1", math.ulp(0.0))
    c2 = checks.real(c2, "c2", math.ulp(0.0))
    sides = (-math.inf, 0.0) if decay == "polynomial" else (0.0, math.inf)
    gamma = checks.real(gamma, "gamma", *sides)
    powers = torch.arange(1, n + 1, dtype=torch.float64) ** gamma
    return c1 * (powers if decay == "polynomial" else torch.exp(-c2 * powers))


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, W: Any, targets: Any) -> Any:
        tall = W.T if W.shape[0] < W.shape[1] else W
        values, vectors = torch.linalg.eigh(gram(tall))
        sigma, vectors = values.clamp(min=0).sqrt().flip(0), vectors.flip(1)
        resolved = sigma > UNRESOLVED * sigma[0]
        slope = 2 * (sigma - over_ties(targets, sigma)) * resolved
        factor = slope / torch.where(resolved, sigma, 1.0)
        rounding = 4 * torch.finfo(W.dtype).eps * sigma[0] * factor.abs().max()
        on_cpu = W.device.type == "cpu"  # elsewhere single precision may mean TF32
        ctx.exact = not on_cpu or bool(rounding > EXACT * slope.norm())
        ctx.save_for_backward(W, (vectors * factor) @ vectors.T)
        return ((sigma - targets) ** 2).sum().to(W.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        W, inner = ctx.saved_tensors
        tall = W.T if W.shape[0] < W.shape[1] else W
        inner = gradient.double() * inner
        with torch.autocast(W.device.type, enabled=False):
            if ctx.exact:
                parts = [(rows.double() @ inner).to(W.dtype) for rows in tall.split(ROWS)]
                found = torch.cat(parts)
            else:
                found = tall @ inner.to(W.dtype)
        return found.T if W.shape[0] < W.shape[1] else found, None


def gram(W: Any) -> Any:
    """W'W in float64; blocks above the diagonal, which eigh doesn't read, are zero."""
    d = W.shape[1]
    width = -(-d // BLOCKS)
    found = torch.zeros(d, d, dtype=torch.float64, device=W.device)
    for part in W.split(ROWS):
        rows = part.double()
        for start in range(0, d, width):
            stop = start + width
            found[start:, start:stop] += rows[:, start:].T @ rows[:, start:stop]
    return found


def over_ties(targets: Any, sigma: Any) -> Any:
    """Targets averaged over runs of equal singular values, which are in descending order."""
    apart = sigma[:-1] - sigma[1:] > UNRESOLVED * sigma[0]
    groups = torch.cat([apart.new_zeros(1), apart]).cumsum(0)
    sums = torch.zeros_like(targets).index_add_(0, groups, targets)
    sizes = torch.zeros_like(targets).index_add_(0, groups, torch.ones_like(targets))
    return (sums / sizes.clamp(min=1))[groups]

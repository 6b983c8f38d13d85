"""A normalising flow of vectors, after Glow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from isotropy import checks
from isotropy.errors import public
from isotropy.losses.base import centred, summed

LEAST_DEVIATION = 1e-4  # of the usual one; a column that varies less is not scaled up


class ActNorm(nn.Module):
    """(x + bias) exp(log_scale), which starts by standardising the first batch in training.

    Before that it is the identity. A dimension that doesn't vary in that batch is only centred.
    """

    _known: Any = None  # the buffer once it is true: reading it at every step would be slow

    def __init__(self, d: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(d))
        self.log_scale = nn.Parameter(torch.zeros(d))
        self.register_buffer("started", torch.tensor(False))
        self.register_load_state_dict_post_hook(_forget)

    def forward(self, x: Any) -> tuple[Any, Any]:
        if self.training and self._known is not self.started:
            if not self.started:
                self._start(x.detach())
            self._known = self.started
        return (x + self.bias) * self.log_scale.exp(), self.log_scale.sum()

    def inverse(self, z: Any) -> Any:
        return z * (-self.log_scale).exp() - self.bias

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _start(self, x: Any) -> None:
        count, mean, y = centred(x)
        deviation = (summed((y * y).sum(dim=0)) / count).sqrt()
        rounding = 16 * torch.finfo(x.dtype).eps * mean.abs()
        hardly = LEAST_DEVIATION * deviation.square().mean().sqrt()
        varying = deviation > torch.maximum(rounding, hardly)
        self.bias.copy_(-mean)
        self.log_scale.copy_(-torch.where(varying, deviation, 1.0).log())
        self.started.fill_(True)


def _forget(module: Any, _: Any) -> None:
    module._known = None


class Coupling(nn.Module):
    """The second half of x plus a function of the first; the first half has floor(d/2) columns."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.half = d // 2
        self.shift = nn.Sequential(
            nn.Linear(self.half, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, d - self.half),
        )
        nn.init.zeros_(self.shift[-1].weight)
        nn.init.zeros_(self.shift[-1].bias)

    def forward(self, x: Any, sign: int = 1) -> Any:
        first, second = x[:, : self.half], x[:, self.half :]
        with torch.autocast(x.device.type, enabled=False):  # both ways must round alike
            return torch.cat([first, second + sign * self.shift(first)], dim=1)


class Step(nn.Module):
    """ActNorm, reversal of the columns, additive coupling."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.norm = ActNorm(d)
        self.coupling = Coupling(d, hidden)

    def forward(self, x: Any) -> tuple[Any, Any]:
        x, logdet = self.norm(x)
        return self.coupling(x.flip(1)), logdet

    def inverse(self, z: Any) -> Any:
        return self.norm.inverse(self.coupling(z, sign=-1).flip(1))


@public
class FlowNetwork(nn.Module):
    r"""An invertible map of vectors to a standard Gaussian; `network(x)` returns (z, logdet).

    Each level has a few steps of ActNorm, reversal and additive coupling; after a level the second
    half of the columns is finished, and the first half goes on to the next.

    Parameters
    ----------
    d : int
        Width of the vectors, 1 or more.
    n_levels, n_steps : int
        Number of levels, fewer if less than two columns are left, and of steps in each. With one
        column there is no level, and the flow is the identity.
    hidden : int
        Width of the two hidden layers of a coupling.

    Notes
    -----
    The flow of Li et al., On the sentence embeddings from pre-trained language models, 2020, with
    the Glow of Kingma and Dhariwal 2018: 3 levels of 3 steps, hidden layers of 32, the last layer
    of each coupling starting at zero. Odd widths are split into floor and ceil halves. Differs
    from the released code: ActNorm starts from the first training batch (in a distributed run,
    from those of all processes), which that code leaves out. z is one tensor: the columns left
    after the last level, then those that each level before it split off.

    Examples
    --------
    >>> import torch
    >>> flow = FlowNetwork(5)
    >>> x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> z, logdet = flow(x)
    >>> tuple(z.shape), tuple(logdet.shape), torch.allclose(flow.inverse(z), x, atol=1e-5)
    ((64, 5), (64,), True)
    """

    def __init__(self, d: int, n_levels: int = 3, n_steps: int = 3, hidden: int = 32) -> None:
        super().__init__()
        self.d = checks.integer(d, "d", 1)
        for name, value in (("n_levels", n_levels), ("n_steps", n_steps), ("hidden", hidden)):
            checks.integer(value, name, 1)
        self.levels = nn.ModuleList()
        width = d
        for _ in range(n_levels):
            if width < 2:
                break
            self.levels.append(nn.ModuleList([Step(width, hidden) for _ in range(n_steps)]))
            width //= 2

    def forward(self, x: Any) -> tuple[Any, Any]:
        """z of shape (n, d), and log |det dz/dx| of each row, of shape (n,)."""
        logdet = x.new_zeros(())
        done: list[Any] = []
        for level in self.levels:
            for step in level:
                x, added = step(x)
                logdet = logdet + added
            half = x.shape[1] // 2
            x, rest = x[:, :half], x[:, half:]
            done.insert(0, rest)
        return torch.cat([x, *done], dim=1), logdet.expand(x.shape[0])

    def inverse(self, z: Any) -> Any:
        """The rows that the flow maps to z."""
        widths = [self.d]
        for _ in self.levels:
            widths.append(widths[-1] // 2)
        x = z[:, : widths[-1]]
        for level, width in zip(reversed(self.levels), reversed(widths[:-1]), strict=True):
            x = torch.cat([x, z[:, x.shape[1] : width]], dim=1)
            for step in reversed(level):
                x = step.inverse(x)
        return x

    def log_prob(self, x: Any) -> Any:
        """Log density of each row, whose mean training maximises."""
        z, logdet = self(x)
        return logdet - 0.5 * (z * z).sum(dim=1) - 0.5 * self.d * math.log(2 * math.pi)

"""The isotropy layer: a feed-forward layer between a model and its head."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from isotropy import checks

Variant = Literal["frozen", "joint", "alternating"]


class IsotropyLayer(nn.Module):
    r"""W x + b, which starts as the identity; deeper layers add V relu(h) + c to what comes in.

    Parameters
    ----------
    d : int
        Width of what goes in and comes out.
    depth : int
        Linear maps. One is that of the paper, and affine.

    Notes
    -----
    Section 3.2 of [1]_, which leaves a deeper network to later work. Every further map starts at
    zero and is added, so that the whole starts as the identity at any depth, and a frozen head sees
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
        checks.integer(d, "d", "IsotropyLayer", 1)
        checks.integer(depth, "depth", "IsotropyLayer", 1)
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


def freeze(layer: Any, head: Any, variant: Variant = "frozen", epoch: int = 0) -> None:
    """Let those of an isotropy layer and its head learn whose turn it is.

    Parameters
    ----------
    layer, head : torch modules
    variant : {"frozen", "joint", "alternating"}
        The head never learns; it learns with the layer; or they take turns, the layer in even
        epochs and the head in odd ones.
    epoch : int
        Counted from zero; call again at the start of each where they alternate.

    Notes
    -----
    The paper of `IsotropyLayer` trains with a frozen head, and proposes the other two in its
    section 4.4.
    """
    checks.choice(variant, "variant", "freeze", ("frozen", "joint", "alternating"))
    turn = checks.integer(epoch, "epoch", "freeze", 0) % 2 == 1
    head.requires_grad_(variant == "joint" or (variant == "alternating" and turn))
    layer.requires_grad_(variant != "alternating" or not turn)

"""Penalties on a tensor of a model, added to a training loss."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from inspect import signature
from typing import Any, ClassVar

import torch

from isotropy import checks, specs
from isotropy.errors import InputError, public
from isotropy.losses.functional import (
    Decay,
    cosine_penalty,
    isoscore,
    isoscore_star,
    spectrum_penalty,
)
from isotropy.losses.layers import RunningCovariance

Tensor = Any
NAMED = ("output", "input", "cls")


@dataclass(frozen=True)
class Tensors:
    """The tensors of one forward pass that can be regularised.

    Attributes
    ----------
    output : tensor of shape (n_outputs, d), optional
        The weights of the layer that predicts: one row per token, or per class.
    input : tensor of shape (n_tokens, d), optional
        The token embeddings.
    cls : tensor of shape (n_texts, d), optional
        The last layer's [CLS], or another vector that stands for a text.
    hidden : sequence of tensors of shape (n_texts, length, d)
        The hidden states of every layer, from the embedding layer.
    mask : tensor of shape (n_texts, length), optional
        Which positions are tokens.
    """

    output: Tensor = None
    input: Tensor = None
    cls: Tensor = None
    hidden: Sequence[Tensor] = ()
    mask: Tensor = None

    def on(self, name: str) -> Tensor:
        """The rows of output, input or cls; for hidden:K those of the tokens in layer K."""
        if name in NAMED:
            found = getattr(self, name)
            if found is None:
                there = [*(n for n in NAMED if getattr(self, n) is not None)]
                there += ["hidden:K"] if self.hidden else []
                raise InputError(
                    f"on must be a tensor of the model, one of {', '.join(there)}, got {name!r}."
                )
            return found
        layer = layer_of(name)
        if layer is None or not -len(self.hidden) <= layer < len(self.hidden):
            raise InputError(
                f"on must be one of {', '.join(NAMED)} or a layer from hidden:0 to "
                f"hidden:{len(self.hidden) - 1}, got {name!r}."
            )
        states = self.hidden[layer]
        return states.flatten(0, 1) if self.mask is None else states[self.mask.bool()]


def layer_of(on: str) -> int | None:
    """The number of the layer for hidden:K, None for the other tensors."""
    if on in NAMED:
        return None
    kind, _, number = on.partition(":")
    if kind != "hidden" or not number.lstrip("-").isdigit():
        raise InputError(f"on must be one of {', '.join(NAMED)} or hidden:K, got {on!r}.")
    return int(number)


@dataclass
class Spectrum:
    """`spectrum_penalty` with the fields as its constants.

    If c1 is None it is set at the first call, so that the first target is the largest singular
    value. For a batch, the singular values are those of X/sqrt(n), which don't grow with n.
    """

    decay: ClassVar[Decay]

    c1: float | None = None

    def __call__(self, X: Tensor, batch: bool) -> Tensor:
        if batch:
            X = X * len(X) ** -0.5
        if self.c1 is None:
            with torch.no_grad():
                largest = float(torch.linalg.matrix_norm(X.double(), ord=2))
            self.c1 = largest * math.exp(asdict(self).get("c2", 0.0))
        return spectrum_penalty(X, self.decay, **asdict(self))


@dataclass
class PolynomialSpectrum(Spectrum):
    decay = "polynomial"

    gamma: float = -0.5


@dataclass
class ExponentialSpectrum(Spectrum):
    decay = "exponential"

    c2: float = 0.1
    gamma: float = 0.5


@dataclass
class IsoscoreStar:
    """1 - IsoScore of (1 - zeta) C_batch + zeta C_running."""

    zeta: float = 0.2
    momentum: float = 0.05
    running: RunningCovariance | None = field(default=None, init=False)

    def __call__(self, X: Tensor, batch: bool) -> Tensor:
        if self.running is None:
            self.running = RunningCovariance(X.shape[1], self.momentum).to(X.device)
        return 1 - isoscore_star(X, self.running(X), self.zeta)


Penalty = Callable[[Tensor, bool], Tensor]
PENALTIES: dict[str, Callable[..., Penalty]] = {
    "cosine": lambda: lambda X, batch: cosine_penalty(X),
    "spectrum-polynomial": PolynomialSpectrum,
    "spectrum-exponential": ExponentialSpectrum,
    "isoscore": lambda: lambda X, batch: 1 - isoscore(X),
    "isoscore-star": IsoscoreStar,
}
ON_OUTPUT = ("cosine", "spectrum-polynomial", "spectrum-exponential")  # in Ding et al. 2022


@public
class Regularizer:
    """A penalty with its weight and its tensor; `regularizer(tensors)` is added to the loss.

    Parameters
    ----------
    what : str or callable
        "cosine", "spectrum-polynomial", "spectrum-exponential", "isoscore" or "isoscore-star"; or
        a function that returns a penalty for rows of shape (n, d).
    weight : float
        A negative weight pushes the other way.
    on : str, optional
        "output", "input", "cls", or "hidden:K" for the tokens of layer K. By default "output" for
        cosine and spectrum, as in Ding et al. 2022, else "cls".
    **options
        Of the penalty: c1, c2 and gamma for spectrum, zeta and momentum for isoscore-star.

    Notes
    -----
    `IsotropyTrainer` and `isotropy train` share these defaults. Without c1, the first target of
    the spectrum is the largest singular value that the tensor starts with.

    Examples
    --------
    >>> import torch
    >>> regularizer = Regularizer("cosine", weight=0.5)
    >>> round(float(regularizer(Tensors(output=torch.ones(4, 3)))), 4)
    0.375
    """

    def __init__(
        self,
        what: str | Callable[[Tensor], Tensor],
        weight: float = 1.0,
        on: str | None = None,
        **options: Any,
    ) -> None:
        number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight):
            raise InputError(f"weight must be a finite number, got {weight!r}.")
        self.what, self.weight = what, float(weight)
        self.on = on or ("output" if what in ON_OUTPUT else "cls")
        layer_of(self.on)
        self.penalty = self._penalty(what, options)

    def _penalty(self, what: Any, options: Mapping[str, Any]) -> Penalty:
        if callable(what):
            return lambda X, _: what(X)
        made = PENALTIES[checks.choice(what, "what", list(PENALTIES))]
        specs.expect_known(options, signature(made).parameters, f"options of {what}")
        return made(**options)

    @property
    def options(self) -> dict[str, Any]:
        """Weight, tensor and options, with a c1 that was set at the first call."""
        penalty: Any = self.penalty
        own = [f.name for f in fields(penalty) if f.init] if is_dataclass(penalty) else []
        found = {"weight": self.weight, "on": self.on}
        return found | {name: getattr(penalty, name) for name in own}

    @property
    def needs_hidden(self) -> bool:
        """Whether hidden states other than the last [CLS] are needed."""
        return self.on not in NAMED

    def __call__(self, tensors: Tensors) -> Tensor:
        """The weighted penalty of the tensor."""
        X = tensors.on(self.on)
        return self.weight * self.penalty(X, self.on not in ("output", "input"))

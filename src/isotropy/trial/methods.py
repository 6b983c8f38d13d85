"""The methods of the trial: what each adds to a network and its loss, where, and when."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from isotropy import checks
from isotropy.errors import InputError
from isotropy.losses.flow import Flow
from isotropy.losses.layers import IsoBatchNorm, IsotropyLayer
from isotropy.losses.regularizers import Regularizer
from isotropy.trial.networks import Network, Passed
from isotropy.trial.task_data import GENERATION

Tensor = Any


class Method:
    """A way to train: what stands before the head, and what the loss gains at every step.

    A subclass is found by its `name`; the arguments of its `__init__` are its options.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of task that it is for; all where there are none.
    searched : tuple of dicts
        Options to choose from on a validation split.
    lr : float, optional
        Learning rate of its own parameters, where that is not the network's.
    centres : bool
        Whether the head gets rows that have no mean, for which it is to be made ready.
    """

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Method]]] = {}
    kinds: ClassVar[tuple[str, ...]] = ()
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    centres: ClassVar[bool] = False
    lr: float | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            Method.by_name[cls.name] = cls

    def begin(self, network: Network, kind: str) -> None:
        """Make the network ready to be trained on a task of this kind."""
        if self.kinds and kind not in self.kinds:
            raise InputError(
                f"{self.name} is for tasks of {', '.join(self.kinds)}, got one of {kind}."
            )

    def penalty(self, network: Network, passed: Passed) -> Tensor:
        """What is added to the loss of the task."""
        return 0.0

    def used(self) -> dict[str, Any]:
        """The options as they were used, with what the data settled."""
        return {name: getattr(self, name) for name in options_of(type(self))}


class Nothing(Method):
    """Plain fine-tuning."""

    name = "none"


class Regularized(Method):
    """A regulariser on a tensor, at every step with the same weight.

    Without `on` the tensor is the head's input: [CLS], or of a siamese network the mean-pooled
    vectors; where text is generated, the output embeddings.
    """

    on_generated: ClassVar[str] = "output"

    def __init__(self, weight: float, on: str | None, **options: Any) -> None:
        self.weight, self.on, self.options = weight, on, options
        Regularizer(self.name, weight, on or "cls", **options)  # says now what is wrong

    def begin(self, network: Network, kind: str) -> None:
        super().begin(network, kind)
        self.on = self.on or (self.on_generated if kind == GENERATION else "cls")
        self.regularizer = Regularizer(self.name, self.weight, self.on, **self.options)
        network.with_hidden = self.regularizer.needs_hidden

    def penalty(self, network: Network, passed: Passed) -> Tensor:
        return self.regularizer(passed.tensors)


class CosineMethod(Regularized):
    """Cosine regularisation: Gao et al. 2019."""

    name = "cosine"
    searched = ({"weight": 0.01}, {"weight": 0.1}, {"weight": 1.0}, {"weight": 10.0})

    def __init__(self, weight: float = 1.0, on: str | None = None) -> None:
        super().__init__(weight, on)


class SpectrumMethod(Regularized):
    """Spectrum control: Wang et al. 2020."""

    searched = ({"weight": 1e-5}, {"weight": 1e-4}, {"weight": 1e-3}, {"weight": 1e-2})

    def used(self) -> dict[str, Any]:
        c1 = self.regularizer.penalty.c1  # type: ignore[attr-defined]
        return super().used() | {"c1": c1}


class Polynomial(SpectrumMethod):
    name = "spectrum-polynomial"

    def __init__(
        self,
        weight: float = 1e-4,
        on: str | None = None,
        c1: float | None = None,
        gamma: float = -0.5,
    ) -> None:
        super().__init__(weight, on, c1=c1, gamma=gamma)
        self.c1, self.gamma = c1, gamma


class Exponential(SpectrumMethod):
    name = "spectrum-exponential"

    def __init__(
        self,
        weight: float = 1e-4,
        on: str | None = None,
        c1: float | None = None,
        c2: float = 0.1,
        gamma: float = 0.5,
    ) -> None:
        super().__init__(weight, on, c1=c1, c2=c2, gamma=gamma)
        self.c1, self.c2, self.gamma = c1, c2, gamma


class IsoscoreStarMethod(Regularized):
    """IsoScore with a running covariance: Rudman and Eickhoff 2024."""

    name = "isoscore-star"
    on_generated = "hidden:-1"
    searched = ({"weight": -1.0}, {"weight": 0.1}, {"weight": 1.0}, {"weight": 10.0})

    def __init__(
        self,
        weight: float = 1.0,
        on: str | None = None,
        zeta: float = 0.2,
        momentum: float = 0.05,
    ) -> None:
        super().__init__(weight, on, zeta=zeta, momentum=momentum)
        self.zeta, self.momentum = zeta, momentum


class FlowCalibration(nn.Module):
    """Maps rows by a flow that is trained on them, and only on them.

    In training, `surprise` is then the flow's negative log likelihood of the rows, a dimension. It
    reaches the flow alone, and the loss of the task all but the flow.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.flow = Flow(d)
        self.surprise: Tensor = 0.0

    def start(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Start the flow from rows; (centre, axes) of what it then is, rows = centre + z @ axes."""
        self.flow.train()(rows.float())
        numbers = torch.eye(self.flow.d, device=rows.device)
        centre = self.flow.inverse(torch.zeros_like(numbers[:1]))[0]
        return centre, self.flow.inverse(numbers) - centre

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.float()
            if self.training:
                self.surprise = -self.flow.log_prob(rows.detach()).mean() / self.flow.d
            fixed = {name: weight.detach() for name, weight in self.flow.named_parameters()}
            z, _ = torch.func.functional_call(self.flow, fixed, (rows,))
            return z


class FlowMethod(Method):
    """A flow between body and head, trained along at every step: Li et al. 2020, Ding et al. 2022.

    The head gets f^-1([CLS]), or, where text is generated, f^-1 of the states at every predicted
    token; ActNorm starts from a first batch. The flow takes every mean away: what all answers
    have in common must be in the head's bias, which starts from the labels. Otherwise the body
    moves the mean and the flow undoes it, without end. An output layer that is pretrained
    starts as its twin for the flow's rows, with a bias, so that the first step predicts what
    the model did. Without `lr` the flow learns at the network's rate: at the 1e-3 that a flow
    of a frozen model is trained with, it moves away from under the head.
    """

    name = "flow"
    centres = True

    def __init__(self, lr: float | None = None) -> None:
        self.lr = None if lr is None else checks.real(lr, "lr of flow", 0)

    def begin(self, network: Network, kind: str) -> None:
        super().begin(network, kind)
        network.calibration = FlowCalibration(network.n_features).to(network.input.device)

    def penalty(self, network: Network, passed: Passed) -> Tensor:
        return network.calibration.surprise


class IsoBN(Method):
    """Isotropic batch normalisation of the head's input, at every step: Zhou et al. 2021."""

    name = "isobn"
    kinds = ("classification", "regression", "siamese")

    def __init__(self, momentum: float = 0.05, eps: float = 1e-3) -> None:
        self.momentum, self.eps = momentum, eps

    def begin(self, network: Network, kind: str) -> None:
        super().begin(network, kind)
        module = IsoBatchNorm(network.n_features, self.momentum, self.eps)
        network.calibration = module.to(network.input.device)


class IsotropyLayerMethod(Method):
    """The isotropy layer: plain fine-tuning, then body and head frozen and the layer trained.

    The second training is by the joint loss on the [CLS] of the fine-tuned model, which are
    computed once. Its learning rate, epochs and batch are not reported; these are ours.
    """

    name = "isotropy-layer"
    kinds = ("classification", "regression", "siamese")

    def __init__(
        self,
        layer_lr: float = 1e-4,
        layer_epochs: int = 20,
        layer_batch: int = 256,
        alpha: float = 0.5,
        depth: int = 1,
        variant: str = "frozen",
    ) -> None:
        self.layer_lr = checks.real(layer_lr, "layer_lr", 0)
        self.layer_epochs = checks.integer(layer_epochs, "layer_epochs", 1)
        self.layer_batch = checks.integer(layer_batch, "layer_batch", 2)
        self.alpha = checks.real(alpha, "alpha", -math.inf)
        self.depth = checks.integer(depth, "depth", 1)
        variants = ("frozen", "joint", "alternating")
        self.variant = checks.choice(variant, "variant", variants)

    def layer(self, network: Network) -> Any:
        """The layer, not yet trained."""
        return IsotropyLayer(network.n_features, self.depth).to(network.input.device)


def options_of(kind: type[Method]) -> list[str]:
    """The names of a method's options."""
    return [name for name in inspect.signature(kind).parameters if name != "self"]


def method_of(spec: str) -> Method:
    """The method that a spec names: "cosine", or "cosine:weight=0.1,on=output"."""
    name, _, rest = spec.partition(":")
    kind = Method.by_name[checks.choice(name, "method", list(Method.by_name))]
    options = {}
    for option in filter(None, rest.split(",")):
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in options_of(kind):
            there = ", ".join(options_of(kind)) or "none"
            raise InputError(
                f"options of {name} must be NAME=VALUE with a name among {there}, got {option!r}."
            )
        options[key] = _value(value.strip())
    return kind(**options)


def spec_of(spec: str, options: Mapping[str, Any]) -> str:
    """The spec with these options added to its own."""
    added = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{spec}{',' if ':' in spec else ':'}{added}"


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

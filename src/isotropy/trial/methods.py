"""The methods of the trial: what each adds to a network and its loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn

from isotropy import checks, specs
from isotropy.errors import InputError
from isotropy.losses import defaults
from isotropy.losses.flow import FlowNetwork
from isotropy.losses.layers import IsoBatchNorm, IsotropyLayer
from isotropy.losses.regularizers import Regularizer
from isotropy.trial.networks import Network, Passed
from isotropy.trial.task_data import CLASSIFICATION, GENERATION, REGRESSION, SIAMESE

Tensor = Any


@dataclass(frozen=True)
class Prepared:
    """A method that is ready to train a network: what it adds to the loss, and its options.

    The options are asked for after training, as some are set from the data.
    """

    penalty: Callable[[Passed], Tensor]
    options: Callable[[], dict[str, Any]]


class TrainingMethod:
    """A way to train: what stands before the head, and what is added to the loss at every step.

    A subclass is a dataclass whose fields are its options; it is found by its `name`.
    """

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[TrainingMethod]]] = {}
    kinds: ClassVar[tuple[str, ...]] = (CLASSIFICATION, REGRESSION, SIAMESE, GENERATION)  # of task
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)  # options that a search chooses from
    centres: ClassVar[bool] = False  # whether the head gets centred rows, and is prepared for them

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            TrainingMethod.by_name[cls.name] = cls

    @property
    def own_lr(self) -> float | None:
        """Learning rate of the method's own parameters; None for that of the network."""
        return None

    def prepare(self, network: Network, kind: str) -> Prepared:
        """Prepare the network to be trained on a task of this kind."""
        if kind not in self.kinds:
            raise InputError(
                f"method must be one for tasks of {kind}, got {self.name!r}, which is for "
                f"{', '.join(self.kinds)}."
            )
        return Prepared(lambda passed: 0.0, lambda: asdict(self))  # type: ignore[call-overload]


@dataclass(frozen=True)
class PlainMethod(TrainingMethod):
    """Fine-tuning without calibration."""

    name = "none"


@dataclass(frozen=True)
class RegularizedMethod(TrainingMethod):
    """A regulariser on a tensor, with the same weight at every step.

    Options that are None have the defaults of `Regularizer`.
    """

    on_generated: ClassVar[str | None] = None  # another default of `on`, for generation

    weight: float | None = None
    on: str | None = None

    def __post_init__(self) -> None:
        self.regularizer(self.on)  # raises now if an option is wrong

    def regularizer(self, on: str | None) -> Regularizer:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return Regularizer(self.name, **given | {"on": on})

    def prepare(self, network: Network, kind: str) -> Prepared:
        super().prepare(network, kind)
        usual = {GENERATION: self.on_generated, SIAMESE: "cls"}.get(kind)  # siamese: there is no W
        regularizer = self.regularizer(self.on or usual)
        network.with_hidden = regularizer.needs_hidden
        return Prepared(lambda passed: regularizer(passed.tensors), lambda: regularizer.options)


@dataclass(frozen=True)
class CosineMethod(RegularizedMethod):
    """Cosine regularisation: Gao et al. 2019."""

    name = "cosine"
    searched = ({"weight": 0.01}, {"weight": 0.1}, {"weight": 1.0}, {"weight": 10.0})


# The papers state neither. The singular values of a new head are about 0.5: the smallest c1 pushes
# them to zero, the largest away from it. With the largest weight, clipping leaves so little of the
# task's gradient that the network learns nothing else.
SPECTRUM_GRID = tuple(
    {"weight": weight, "c1": c1} for c1 in (0.01, 1.0, 10.0) for weight in (0.01, 1.0, 1e4)
)


@dataclass(frozen=True)
class PolynomialMethod(RegularizedMethod):
    """Spectrum control with polynomial decay: Wang et al. 2020."""

    name = "spectrum-polynomial"
    searched = SPECTRUM_GRID

    c1: float | None = None
    gamma: float | None = None


@dataclass(frozen=True)
class ExponentialMethod(RegularizedMethod):
    """Spectrum control with exponential decay: Wang et al. 2020."""

    name = "spectrum-exponential"
    searched = SPECTRUM_GRID

    c1: float | None = None
    c2: float | None = None
    gamma: float | None = None


@dataclass(frozen=True)
class IsoscoreStarMethod(RegularizedMethod):
    """IsoScore with a running covariance: Rudman and Eickhoff 2024."""

    name = "isoscore-star"
    on_generated = "hidden:-1"
    searched = ({"weight": -1.0}, {"weight": 0.1}, {"weight": 1.0}, {"weight": 10.0})

    zeta: float | None = None
    momentum: float | None = None


class FlowCalibration(nn.Module):
    """Maps rows by a flow that is trained on these rows only.

    In training, `surprise` is the flow's negative log likelihood of the last rows, per dimension.
    Its gradient reaches only the flow, and the gradient of the task's loss all but the flow.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.flow = FlowNetwork(d)
        self.surprise: Tensor = 0.0

    def start(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Start the flow from rows; (centre, axes) with which rows = centre + z @ axes."""
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


@dataclass(frozen=True)
class FlowMethod(TrainingMethod):
    """A flow between body and head, trained at every step: Li et al. 2020, Ding et al. 2022.

    The head gets f^-1([CLS]) or, for generation, f^-1 of the states at every predicted token;
    ActNorm starts from a first batch. The flow removes every mean, so what all answers have in
    common must be in the head's bias, which starts from the labels: otherwise the body would keep
    moving the mean and the flow would keep undoing it. A pretrained output layer is replaced by an
    equivalent one for the flow's rows, with a bias, so that the first step predicts what the model
    did. By default the flow learns at the network's rate: at 1e-3, the rate for the flow of a
    frozen model, it changes faster than the head can follow.
    """

    name = "flow"
    centres = True

    lr: float | None = None

    def __post_init__(self) -> None:
        if self.lr is not None:
            checks.real(self.lr, "lr of flow", 0)

    @property
    def own_lr(self) -> float | None:
        return self.lr

    def prepare(self, network: Network, kind: str) -> Prepared:
        found = super().prepare(network, kind)
        calibration = FlowCalibration(network.n_features).to(network.input.device)
        network.calibration = calibration
        return Prepared(lambda passed: calibration.surprise, found.options)


@dataclass(frozen=True)
class IsoBNMethod(TrainingMethod):
    """Isotropic batch normalisation of the head's input at every step: Zhou et al. 2021."""

    name = "isobn"
    kinds = (CLASSIFICATION, REGRESSION, SIAMESE)

    momentum: float = defaults.MOMENTUM
    eps: float = defaults.EPS

    def prepare(self, network: Network, kind: str) -> Prepared:
        module = IsoBatchNorm(network.n_features, self.momentum, self.eps)
        network.calibration = module.to(network.input.device)
        return super().prepare(network, kind)


@dataclass(frozen=True)
class IsotropyLayerMethod(TrainingMethod):
    """The isotropy layer: plain fine-tuning, then body and head are frozen and it is trained.

    The layer is trained by the joint loss on [CLS] of the fine-tuned model, which is computed
    once. The paper doesn't report its learning rate, epochs and batch size; these are ours.
    """

    name = "isotropy-layer"
    kinds = (CLASSIFICATION, REGRESSION, SIAMESE)

    layer_lr: float = defaults.LAYER_LR
    layer_epochs: int = defaults.LAYER_EPOCHS
    layer_batch: int = defaults.LAYER_BATCH
    alpha: float = defaults.ALPHA
    depth: int = 1
    variant: str = "frozen"

    def __post_init__(self) -> None:
        checks.real(self.layer_lr, "layer_lr", 0)
        checks.integer(self.layer_epochs, "layer_epochs", 1)
        checks.integer(self.layer_batch, "layer_batch", 2)
        checks.real(self.alpha, "alpha", -math.inf)
        checks.integer(self.depth, "depth", 1)
        checks.choice(self.variant, "variant", ("frozen", "joint", "alternating"))

    def prepare(self, network: Network, kind: str) -> Prepared:
        if kind == SIAMESE and self.variant == "alternating":
            raise InputError(
                "variant must be 'frozen' or 'joint' for a siamese network, which has no head to "
                "take turns with, got 'alternating'."
            )
        return super().prepare(network, kind)

    def layer(self, network: Network) -> Any:
        """The layer, not yet trained."""
        return IsotropyLayer(network.n_features, self.depth).to(network.input.device)


def method_of(spec: str) -> TrainingMethod:
    """The method for a spec: "cosine", or "cosine:weight=0.1,on=output"."""
    name, options = specs.parse(spec)
    by_name = TrainingMethod.by_name
    kind = by_name[checks.choice(name, "method", list(by_name))]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    specs.expect_known(options, known, f"options of {name}")
    return kind(**options)


def searched_specs(spec: str) -> list[str]:
    """The specs to choose from in a search, which have the options that are given already.

    None if nothing is left to choose.
    """
    name, given = specs.parse(spec)
    grid = TrainingMethod.by_name[name].searched
    found = dict.fromkeys(specs.render(name, {**given, **options, **given}) for options in grid)
    return list(found) if len(found) > 1 else []

"""Losses, layers and Trainer support for isotropy during training [extra train]."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotropy.losses import functional
    from isotropy.losses.flow import FlowNetwork
    from isotropy.losses.layers import (
        IsoBatchNorm,
        IsotropyLayer,
        JointLoss,
        RunningCovariance,
        freeze,
    )
    from isotropy.losses.regularizers import Regularizer
    from isotropy.losses.trainer import IsotropyTrainer

MODULES = {  # torch is imported when the first of these is used
    "FlowNetwork": "flow",
    "IsotropyTrainer": "trainer",
    "Regularizer": "regularizers",
    "functional": "functional",
    **dict.fromkeys(
        ("IsoBatchNorm", "IsotropyLayer", "JointLoss", "RunningCovariance", "freeze"), "layers"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'isotropy.losses' has no attribute {name!r}")
    importlib.import_module("isotropy.losses.base")  # names the extra if torch is missing
    module = importlib.import_module(f"isotropy.losses.{MODULES[name]}")
    return module if name == MODULES[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})


__all__ = [
    "FlowNetwork",
    "IsoBatchNorm",
    "IsotropyLayer",
    "IsotropyTrainer",
    "JointLoss",
    "Regularizer",
    "RunningCovariance",
    "freeze",
    "functional",
]

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

LATER = {  # modules; torch is imported when the first is used
    "FlowNetwork": "isotropy.losses.flow",
    "IsoBatchNorm": "isotropy.losses.layers",
    "IsotropyLayer": "isotropy.losses.layers",
    "IsotropyTrainer": "isotropy.losses.trainer",
    "JointLoss": "isotropy.losses.layers",
    "Regularizer": "isotropy.losses.regularizers",
    "RunningCovariance": "isotropy.losses.layers",
    "freeze": "isotropy.losses.layers",
    "functional": "isotropy.losses.functional",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'isotropy.losses' has no attribute {name!r}")
    importlib.import_module(
        "isotropy.losses.base"
    )  # raises an error that says what to install if torch is missing
    module = importlib.import_module(LATER[name])
    return module if LATER[name] == f"isotropy.losses.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})


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

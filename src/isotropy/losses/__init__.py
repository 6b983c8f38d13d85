"""Losses, layers and Trainer support for isotropy during training [extra train]."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotropy.losses import functional
    from isotropy.losses.flow import Flow
    from isotropy.losses.layers import (
        IsoBatchNorm,
        IsotropyLayer,
        JointLoss,
        RunningCovariance,
        freeze,
    )
    from isotropy.losses.regularizers import Regularizer
    from isotropy.losses.trainer import IsotropyTrainer

LATER = {  # where each is; torch is imported when the first is asked for
    "Flow": "isotropy.losses.flow",
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
    importlib.import_module("isotropy.losses.base")  # says so where there is no torch
    module = importlib.import_module(LATER[name])
    return module if LATER[name] == f"isotropy.losses.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})


__all__ = [
    "Flow",
    "IsoBatchNorm",
    "IsotropyLayer",
    "IsotropyTrainer",
    "JointLoss",
    "Regularizer",
    "RunningCovariance",
    "freeze",
    "functional",
]

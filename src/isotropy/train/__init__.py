"""Isotropy while a model is trained: losses, layers, a flow, and a trial of them [extra train]."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotropy.repairs.networks.flow import Flow
    from isotropy.repairs.networks.isotropy_layer import IsotropyLayer, freeze
    from isotropy.repairs.networks.joint_loss import JointLoss
    from isotropy.train import functional
    from isotropy.train.isobn import IsoBatchNorm
    from isotropy.train.regularizers import Regularizer
    from isotropy.train.running_covariance import RunningCovariance
    from isotropy.train.trainer import IsotropyTrainer

LATER = {  # where each is; torch is imported when the first is asked for
    "Flow": "isotropy.repairs.networks.flow",
    "IsoBatchNorm": "isotropy.train.isobn",
    "IsotropyLayer": "isotropy.repairs.networks.isotropy_layer",
    "IsotropyTrainer": "isotropy.train.trainer",
    "JointLoss": "isotropy.repairs.networks.joint_loss",
    "Regularizer": "isotropy.train.regularizers",
    "RunningCovariance": "isotropy.train.running_covariance",
    "freeze": "isotropy.repairs.networks.isotropy_layer",
    "functional": "isotropy.train.functional",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'isotropy.train' has no attribute {name!r}")
    importlib.import_module("isotropy.repairs.networks")  # says so where there is no torch
    module = importlib.import_module(LATER[name])
    return module if LATER[name] == f"isotropy.train.{name}" else getattr(module, name)


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

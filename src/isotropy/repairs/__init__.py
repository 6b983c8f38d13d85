"""Repairs: scikit-learn transformers that make a space more even, and ship as one file."""

from isotropy.repairs.base import (
    Invertible,
    Repair,
    SummedRepair,
    load,
    load_with_header,
    open_target,
    restored,
    with_parameters,
)
from isotropy.repairs.calibrator import FEWEST, ScoreCalibrator
from isotropy.repairs.centering import Center, ScaledCenter, Standardize
from isotropy.repairs.chain import Chain
from isotropy.repairs.drift import Drift, GroupDrift
from isotropy.repairs.files import check_target
from isotropy.repairs.origin import Origin, origin_warning
from isotropy.repairs.per_group import PerGroup
from isotropy.repairs.removal import AllButTheTop, ClusterRemoval
from isotropy.repairs.rotate import Rotate
from isotropy.repairs.shift import Shift, shift
from isotropy.repairs.trained import Flow, LearnedLayer
from isotropy.repairs.whiten import Whiten
from isotropy.stored import Field

__all__ = [
    "AllButTheTop",
    "Center",
    "Chain",
    "ClusterRemoval",
    "Drift",
    "Field",
    "Flow",
    "GroupDrift",
    "Invertible",
    "LearnedLayer",
    "Origin",
    "PerGroup",
    "Repair",
    "Rotate",
    "ScaledCenter",
    "ScoreCalibrator",
    "Shift",
    "Standardize",
    "SummedRepair",
    "Whiten",
    "load",
]

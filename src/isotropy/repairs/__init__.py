"""Repairs: scikit-learn transformers that make a space more even, and ship as one file."""

from isotropy.repairs.all_but_the_top import AllButTheTop
from isotropy.repairs.base import Invertible, Repair, SummedRepair, load, load_with_header
from isotropy.repairs.blockwise import open_target
from isotropy.repairs.calibrator import FEWEST, ScoreCalibrator
from isotropy.repairs.center import Center
from isotropy.repairs.cluster_removal import ClusterRemoval
from isotropy.repairs.files import check_target
from isotropy.repairs.flow import Flow
from isotropy.repairs.learned_layer import LearnedLayer
from isotropy.repairs.scaled_center import ScaledCenter
from isotropy.repairs.shift import Shift, shift
from isotropy.repairs.standardize import Standardize
from isotropy.repairs.whiten import Whiten
from isotropy.stored import Field

__all__ = [
    "AllButTheTop",
    "Center",
    "ClusterRemoval",
    "Field",
    "Flow",
    "Invertible",
    "LearnedLayer",
    "Repair",
    "ScaledCenter",
    "ScoreCalibrator",
    "Shift",
    "Standardize",
    "SummedRepair",
    "Whiten",
    "load",
]

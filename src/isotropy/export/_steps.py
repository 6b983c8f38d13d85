"""The steps of a repair for a target that runs them, or one line that says why it cannot."""

from __future__ import annotations

from typing import Any

from isotropy.errors import InputTypeError, NotAffineError
from isotropy.repairs import Repair
from isotropy.repairs.steps import Step


def as_repair(repair: Any) -> Repair:
    """The repair; raises for anything else."""
    if not isinstance(repair, Repair):
        raise InputTypeError(
            f"repair must be a fitted repair, got {type(repair).__name__}. Load a file with "
            "isotropy.load."
        )
    if repair.grouped:
        raise InputTypeError(
            f"repair must be one map for all rows, got {type(repair).__name__}. Export that of "
            "each group, repairs_[group]."
        )
    return repair


def steps_for(repair: Any, target: str, instead: str) -> list[Step]:
    """The steps of a fitted repair; `instead` says what to do if it has none."""
    try:
        return as_repair(repair).steps()
    except NotAffineError as error:
        raise NotAffineError(
            f"repair must be one that {target} can run, got {type(repair).__name__}, which is a "
            f"network. {instead}"
        ) from error

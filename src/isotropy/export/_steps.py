"""The steps of a repair for a target that runs them, or one line that says why it cannot."""

from __future__ import annotations

from typing import Any

from isotropy.errors import InputTypeError, NotAffineError
from isotropy.repairs import Repair
from isotropy.repairs.steps import Step


def check_repair(repair: Any) -> None:
    """Raise unless this is a repair."""
    if not isinstance(repair, Repair):
        raise InputTypeError(
            f"repair must be a fitted repair, got {type(repair).__name__}. Load a file with "
            "isotropy.load."
        )


def steps_for(repair: Any, target: str, instead: str) -> list[Step]:
    """The steps of a fitted repair; `instead` says what to do if it has none."""
    check_repair(repair)
    try:
        return repair.steps()
    except NotAffineError as error:
        raise NotAffineError(
            f"repair must be one that {target} can run, got {type(repair).__name__}, which is a "
            f"network. {instead}"
        ) from error

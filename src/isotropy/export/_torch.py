"""A repair as a program of torch.export."""

from __future__ import annotations

from typing import Any

import torch

from isotropy.export._steps import steps_for
from isotropy.repairs import Repair
from isotropy.sources import guard
from isotropy.writing import atomic_write


def exported(repair: Repair, out: Any, overwrite: bool) -> None:
    """Write the program; see `isotropy.export.torch`."""
    steps_for(repair, "torch.export", "Repair the rows with `transform` instead.")
    guard({"out": out}, overwrite=overwrite)
    example = torch.zeros((2, repair.n_features_in_))
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(repair.as_module().eval(), (example,), dynamic_shapes=shapes)
    with atomic_write(out, overwrite=overwrite) as part, open(part, "wb") as file:
        torch.export.save(program, file)

"""A repair as a program of torch.export."""

from __future__ import annotations

from typing import Any

import torch

from isotropy.export._steps import steps_for
from isotropy.repairs import Repair, check_target
from isotropy.sources import output_path
from isotropy.writing import atomic_write, write_errors


def exported(repair: Repair, out: Any, overwrite: bool) -> None:
    """See `isotropy.export.torch`."""
    steps_for(repair, "torch.export", "Ship the saved file, and apply it with isotropy.")
    check_target({"out": out}, overwrite=overwrite)
    example = torch.zeros((2, repair.n_features_in_))
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(repair.as_module().eval(), (example,), dynamic_shapes=shapes)
    path = output_path(out, "out")
    with (
        write_errors(path),
        atomic_write(path, overwrite=overwrite) as part,
        open(part, "wb") as file,
    ):
        torch.export.save(program, file)

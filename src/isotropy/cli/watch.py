"""isotropy watch: have new vectors drifted from those that a repair was fitted on?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Option

from isotropy.cli import common
from isotropy.cli.repair import expect_grouping, loaded
from isotropy.errors import InputError
from isotropy.repairs import Repair
from isotropy.tables import json_line

DRIFTED = 3  # exit code


@common.command(
    "isotropy watch repair.safetensors new.npy",
    "isotropy watch repair.safetensors new.npy --max-drift 0.2 --json",
)
def watch(
    repair: common.RepairArgument,
    source: common.SourceArgument,
    *,
    max_drift: Annotated[
        float | None,
        Option(
            help="Largest Frechet distance that is no drift [what chance and held-out blocks of "
            "the fitted vectors allow].",
            min=0,
            show_default=False,
        ),
    ] = None,
    group_column: common.GroupColumnOption = None,
    origin: common.OriginOption = None,
    options: common.SourceOptions,
    as_json: common.JsonOption = False,
) -> None:
    """Tell whether new vectors have drifted from those a repair was fitted on.

    The exit code is 0 if the vectors in SOURCE are within the limit, 3 if they have drifted, and 2
    after an error. The distance is the squared Frechet distance between normal distributions,
    divided by the variance of the fitted vectors: 0.25 is a mean that moved by half a deviation.
    With groups, each is compared with its own, and the farthest is shown; --json has all of them.
    """
    fitted = loaded(repair, source, "watch")
    if not isinstance(fitted, Repair):
        raise InputError("REPAIR must be a repair, got a codec. Save its repair_, and watch that.")
    expect_grouping(fitted, group_column)
    grouping: dict[str, Any] = {} if group_column is None else {"groups": group_column}
    rows = options.open(source)
    common.warn_of_origin("watch", common.origin_of(rows, origin), fitted)
    with options.running():
        found = fitted.drift(rows, max_drift, **grouping)
    typer.echo(json_line(found.to_dict()) if as_json else str(found))
    common.say_left_out(rows.n_samples - found.n_samples)
    if found.drifted:
        raise typer.Exit(DRIFTED)

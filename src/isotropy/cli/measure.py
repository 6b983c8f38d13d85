"""isotropy measure: the geometry of a file of vectors."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer
from typer import Option

from isotropy.cli import common
from isotropy.errors import IsotropyWarning
from isotropy.geometry import measure as measure_geometry
from isotropy.metrics import METRICS
from isotropy.sources import guard
from isotropy.tables import json_line


@common.command(
    "isotropy measure vectors.npy",
    "isotropy measure 'corpus/*.parquet' --column vector --metrics isoscore,mean_cosine --json",
)
def measure(
    source: common.SourceArgument,
    *,
    metrics: Annotated[
        str | None,
        Option(
            help="Metrics separated by commas, such as isoscore,mean_cosine [all but hubness "
            "and antihubs, which compare all pairs of a sample].",
            autocompletion=common.among(*(name for name in METRICS if name != "local_isotropy")),
        ),
    ] = None,
    local: Annotated[
        int | None, Option(help="Also measure within this many k-means clusters.", min=1)
    ] = None,
    center: Annotated[
        bool, Option("--center", help="Subtract the mean before decomposing X'X.")
    ] = False,
    as_json: common.JsonOption = False,
    seed: common.SeedOption = 0,
    checkpoint: common.CheckpointOption = None,
    options: common.SourceOptions,
) -> None:
    """Measure how isotropic the vectors in SOURCE are.

    Prints a table of metrics and a verdict. The file is read twice, and up to four times more if
    rounding hides small eigenvalues. Memory use does not grow with the number of rows.
    """
    guard({}, {"SOURCE": source}, kept={"--checkpoint": checkpoint})
    rows = options.open(source)
    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    with options.running(), warnings.catch_warnings(record=as_json) as caught:
        warnings.simplefilter("always", IsotropyWarning)
        geometry = measure_geometry(
            rows, names, center=center, local=local, random_state=seed, checkpoint=checkpoint
        )
    if not as_json:
        typer.echo(str(geometry))
        return
    found = geometry.to_dict() | {"warnings": [str(w.message) for w in caught or []]}
    typer.echo(json_line(found))
    common.say_left_out(geometry.n_skipped)

"""isotropy measure: the geometry of a file of vectors."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from isotropy.cli.common import (
    CheckpointOption,
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    JsonOption,
    SchedulerOption,
    SeedOption,
    SkipOption,
    SourceArgument,
    WorkerTimeoutOption,
    examples,
    json_line,
    listed,
    opened,
    running,
    say_skipped,
)
from isotropy.errors import IsotropyWarning
from isotropy.geometry import measure as measured
from isotropy.metrics import RECORDS
from isotropy.sources.guard import guard


@examples(
    "isotropy measure vectors.npy",
    "isotropy measure 'corpus/*.parquet' --column vector --metrics isoscore,mean_cosine --json",
)
def measure(
    source: SourceArgument,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between, such as isoscore,mean_cosine; without it all but "
            "hubness, which compares all pairs.",
            autocompletion=listed(name for name in METRICS if name != "local_isotropy"),
        ),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(help="Measure within this many k-means clusters too.", min=1),
    ] = None,
    center: Annotated[
        bool, typer.Option("--center", help="Subtract the mean before X'X is decomposed.")
    ] = False,
    as_json: JsonOption = False,
    seed: SeedOption = 0,
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    worker_timeout: WorkerTimeoutOption = None,
    checkpoint: CheckpointOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Measure how isotropic the vectors in SOURCE are.

    Two passes over the file, and up to four more where rounding hides small eigenvalues, in memory
    that does not grow with its rows.
    """
    guard({}, {"SOURCE": source}, kept={"--checkpoint": checkpoint})
    rows = opened(source, column, chunk_rows, skip_bad_rows)
    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    with (
        running(engine, device, scheduler, worker_timeout, checkpoint),
        warnings.catch_warnings(record=as_json) as caught,
    ):
        warnings.simplefilter("always", IsotropyWarning)
        geometry = measured(rows, names, center=center, local=local, random_state=seed)
    if not as_json:
        typer.echo(str(geometry))
        return
    found = geometry.to_dict() | {"warnings": [str(w.message) for w in caught or []]}
    typer.echo(json_line(found))
    say_skipped(geometry.n_skipped)

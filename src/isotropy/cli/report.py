"""isotropy report: one page that shows the shape of a space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from isotropy.cli.common import (
    CheckpointOption,
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    OverwriteOption,
    SchedulerOption,
    SeedOption,
    SkipOption,
    SourceArgument,
    WorkerTimeoutOption,
    destination,
    examples,
    opened,
    running,
    say_skipped,
)
from isotropy.sources import paths
from isotropy.writing import is_stream


@examples(
    "isotropy report vectors.npy",
    "isotropy report vectors.parquet --repair repair.safetensors --out space.html",
)
def report(
    source: SourceArgument,
    repair: Annotated[
        list[Path] | None,
        typer.Option(help="Saved repair to show the space after; several times for more."),
    ] = None,
    evidence: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of what `compare --json` or `advise --json` printed; several times for more."
        ),
    ] = None,
    layers: Annotated[
        Path | None, typer.Option(help="File of what `layers --json` printed.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    overwrite: OverwriteOption = False,
    title: Annotated[str, typer.Option(help="Heading [the name of SOURCE].")] = "",
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
    """Draw the shape of SOURCE on one self-contained HTML page.

    Spectrum, partition function, cosines of random pairs, norms, dimensions, the rows themselves
    with what the file says of them, and evidence where there is some; before and after a repair at
    a press of a button. Nothing on the page is fetched from anywhere. Its size does not grow with
    the rows: what cannot be summed up is drawn of a sample.
    """
    from isotropy.report import write
    from isotropy.report.page import check_page

    page = destination(out) or out
    kept = {"--checkpoint": checkpoint}
    inputs = (source, repair or (), evidence or (), layers)
    check_page(page, *inputs, overwrite=overwrite, name="--out", kept=kept)
    rows = opened(source, column, chunk_rows, skip_bad_rows)
    with running(engine, device, scheduler, worker_timeout, checkpoint) as run:
        write(
            rows,
            page,
            repairs=repair or (),
            evidence=evidence or (),
            layers=layers,
            title=title or Path(source).name,
            seed=seed,
            overwrite=overwrite,
        )
        n_skipped = run.n_skipped
    say_skipped(n_skipped)
    if not is_stream(page):
        size = os.path.getsize(paths.normal(page))
        typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")

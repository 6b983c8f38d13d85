"""isotropy report: a page with charts of a space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from isotropy.cli import common
from isotropy.errors import without_secrets
from isotropy.sources import paths
from isotropy.writing import is_stream


@common.command(
    "isotropy report vectors.npy",
    "isotropy report vectors.parquet --repair repair.safetensors --out space.html",
    "isotropy report new.npy --against repair.safetensors --out drift.html",
)
def report(
    source: common.SourceArgument,
    *,
    repair: Annotated[
        list[Path] | None,
        Option(help="Saved repair; the page shows the space before and after; repeatable."),
    ] = None,
    evidence: Annotated[
        list[Path] | None,
        Option(
            help="Output of `compare --json`, `advise --json` or `compress --json` in a file; "
            "repeatable."
        ),
    ] = None,
    layers: Annotated[Path | None, Option(help="Output of `layers --json` in a file.")] = None,
    against: Annotated[
        str | None,
        Option(
            metavar="OLD",
            help="Earlier vectors, or a saved repair for those it was fitted on: the page shows "
            "both spaces and how far they are apart.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, Option(help="The HTML file to write.")] = Path("report.html"),
    overwrite: common.OverwriteOption = False,
    title: Annotated[str, Option(help="Heading [the name of SOURCE].")] = "",
    seed: common.SeedOption = 0,
    checkpoint: common.CheckpointOption = None,
    options: common.SourceOptions,
) -> None:
    """Write an HTML page with charts of the vectors in SOURCE.

    It shows the spectrum, the partition function, cosines of random pairs, norms, dimensions, and
    the rows themselves with the other columns of the file; with --repair also the space after the
    repair, and with --evidence whether that helps. The page is self-contained: it loads nothing
    from the network. Its size does not grow with the number of rows; single rows are shown for a
    sample.
    """
    from isotropy.report import write
    from isotropy.report.against import opened_old
    from isotropy.report.page import check_page

    page = common.destination(out) or out
    kept = {"--checkpoint": checkpoint}
    inputs = (source, repair or (), evidence or (), layers, against)
    check_page(page, *inputs, overwrite=overwrite, name="--out", kept=kept)
    rows = options.open(source)
    old = None if against is None else opened_old(against, options.open)
    with options.running():
        geometry = write(
            rows,
            page,
            repairs=repair or (),
            evidence=evidence or (),
            layers=layers,
            against=old,
            title=title or Path(without_secrets(source)).name,
            seed=seed,
            overwrite=overwrite,
            checkpoint=checkpoint,
        )
    common.say_left_out(geometry.n_skipped)
    if not is_stream(page):
        size = os.path.getsize(paths.normal(page))
        typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")

"""isotropy reproduce: the experiments of the papers, on any model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from isotropy.cli.common import JsonOption, ModelDeviceOption, command, offline_unless_reached
from isotropy.errors import InputError
from isotropy.tables import json_line, text_table

PUBLISHED = "The paper's own figures stand under the models named (paper)."


@command(
    "isotropy reproduce --list",
    "isotropy reproduce drift/isotropy --quick --out reproduced",
    "isotropy reproduce drift/isotropy drift/norms --model ./my-model",
    "isotropy reproduce cluster --model ./my-model --data data --dry-run",
)
def reproduce(
    experiment: Annotated[
        list[str] | None,
        Argument(
            metavar="EXPERIMENT...",
            help="PAPER/EXPERIMENT, such as cluster/sts, or a paper for all of its experiments: "
            "cluster, drift, layer, calibration, finetuning. Several may be named.",
            show_default=False,
        ),
    ] = None,
    *,
    show_list: Annotated[
        bool, Option("--list", help="List all experiments, one per line.")
    ] = False,
    model: Annotated[
        list[str] | None,
        Option(
            help="A transformers model: its folder, or its name in --models or on the hub; "
            "repeatable [the experiment's stand-ins that are in --models].",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            envvar="ISOTROPY_DATA",
            help="Folder with a subfolder for each data set, such as stsb/dev.tsv. Missing data "
            "sets are named and left out.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        Option(envvar="ISOTROPY_MODELS", help="Folder in which to look for models first."),
    ] = None,
    out: Annotated[
        Path,
        Option(help="Folder for tables and figures; finished parts in it are not repeated."),
    ] = Path("reproduced"),
    device: ModelDeviceOption = None,
    skip: Annotated[
        list[str] | None,
        Option(help="An experiment to leave out; repeatable.", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None, Option(help="Number of seeds [as many as in the paper].", min=1)
    ] = None,
    quick: Annotated[
        bool,
        Option("--quick", help="Try it in seconds, on tiny random models and generated data."),
    ] = False,
    jobs: Annotated[int, Option(help="Runs at the same time, each in a process.", min=1)] = 1,
    records: Annotated[
        Path | None,
        Option(
            help="Report the runs in this file of isotropy train, and fine-tune nothing "
            "[runs.jsonl in the folder of the experiment, to which missing runs are added].",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what would run, what is missing, and how long.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Repeat finished parts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment of a paper on any model, beside the published figures.

    Each experiment writes a folder with result.json, README.md and its figures (PNG and
    interactive HTML), each paper a page, index.html. An interrupted run resumes where it stopped.
    """
    from isotropy.papers import running as papers
    from isotropy.papers.experiment import chosen, experiments

    if show_list:
        for one in experiments().values():
            typer.echo(_line(one))
        return
    if not experiment:
        raise InputError("EXPERIMENT must be given. isotropy reproduce --list shows all.")
    offline_unless_reached(*(model or ()))
    selected = chosen(experiment, skip or ())
    if dry_run:
        for one in selected:
            settings = papers.settings_for(one, out, data, models, device, seeds, False)
            wanted, missing = papers.planned(settings, model)
            typer.echo(f"{_line(one)}\n  models: {', '.join(wanted) or 'none found'}")
            for line in missing:
                typer.echo(f"  {line}")
        return
    found = papers.reproduce(
        [one.full_name for one in selected],
        out=out,
        models=model,
        data=data,
        folder=models,
        device=device,
        seeds=seeds,
        quick=quick,
        jobs=jobs,
        records=records,
        overwrite=overwrite,
        tell=lambda line: typer.echo(line, err=True),
    )
    if as_json:
        typer.echo(json_line(found))
        return
    for one in selected:
        if one.full_name in found:
            _print(one, found[one.full_name])
    if found:
        typer.echo(f"{PUBLISHED} Everything is in {out}.")


def _line(one: object) -> str:
    from isotropy.papers.experiment import Experiment

    assert isinstance(one, Experiment)
    needs = ", ".join(one.data) or "no data"
    takes = "a GPU" if one.gpu else f"{one.minutes:g} min"
    return f"{one.full_name:26} {one.shows:24} {needs}; {takes}; {one.title}"


def _print(one: object, found: dict[str, object]) -> None:
    from isotropy.papers.experiment import Experiment
    from isotropy.papers.results import tables

    assert isinstance(one, Experiment)
    typer.echo(f"{one.full_name}: {one.title} ({one.shows})")
    for layout, head, rows in tables(one, found["records"]):  # type: ignore[arg-type]
        if layout.title:
            typer.echo(layout.title)
        right = range(len(layout.rows), len(head))
        typer.echo(text_table(head, rows, right=right))
    for note in (*found["notes"], *found["missing"]):  # type: ignore[misc]
        typer.echo(note)
    typer.echo("")

"""isotropy repair and isotropy apply: fit a repair to a file, and treat files with it."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from isotropy.cli.common import (
    FILES_OF_ROWS,
    CheckpointOption,
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    Method,
    OverwriteOption,
    RepairArgument,
    SchedulerOption,
    SkipOption,
    SourceArgument,
    WorkerTimeoutOption,
    among,
    destination,
    examples,
    opened,
    running,
    say,
    say_skipped,
)
from isotropy.errors import InputError, IsotropyWarning, RepairFileError
from isotropy.repairs import Repair, load
from isotropy.repairs.base import is_affine, target
from isotropy.repairs.files import check_target
from isotropy.repairs.shift import shift
from isotropy.sources import Source
from isotropy.sources.arrays import Excerpt
from isotropy.sources.guard import guard

DIRECTIONS = 1024  # that a shift is looked for in, so that a small file does not take minutes

OUT_HELP = f"File for the repaired rows: {FILES_OF_ROWS}, which --engine dask needs."


@examples(
    "isotropy repair vectors.npy --method all-but-the-top --out fixed.npy "
    "--save repair.safetensors",
    "isotropy repair vectors.parquet --method whiten --power 0.5 --out fixed.parquet",
)
def repair(
    source: SourceArgument,
    method: Annotated[Method, typer.Option(help="Which repair.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    save: Annotated[
        Path | None, typer.Option(help="File for the fitted repair, which `apply` takes.")
    ] = None,
    overwrite: OverwriteOption = False,
    n_clusters: Annotated[
        int | None, typer.Option(help="cluster-removal: number of clusters [27].")
    ] = None,
    n_components: Annotated[
        int | None,
        typer.Option(
            help="Directions removed [all-but-the-top: one in a hundred, cluster-removal: 12], or "
            "kept [whiten: all]."
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(
            help="Remove directions from the top or the bottom [top].",
            autocompletion=among("top", "bottom"),
        ),
    ] = None,
    whitening: Annotated[
        str | None,
        typer.Option(help="whiten: zca or pca [zca].", autocompletion=among("zca", "pca")),
    ] = None,
    power: Annotated[
        float | None, typer.Option(help="whiten: 1 in full, 0.5 half the way [1].")
    ] = None,
    eps: Annotated[
        float | None, typer.Option(help="whiten: least eigenvalue, relative to the mean one.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale the repaired rows to length one.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="cluster-removal: seed of the clustering [0].")
    ] = None,
    note: Annotated[str, typer.Option(help="Free text kept in the saved file.")] = "",
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    worker_timeout: WorkerTimeoutOption = None,
    checkpoint: CheckpointOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Fit a repair to SOURCE, save it, and write the repaired rows."""
    if out is None and save is None:
        raise InputError("--out or --save must be given; otherwise nothing is kept.")
    options = {
        "n_clusters": n_clusters,
        "n_components": n_components,
        "side": side,
        "method": whitening,
        "power": power,
        "eps": eps,
        "random_state": seed,
        "normalize": normalize or None,
    }
    fitted = made(str(method), options)
    save = destination(save)
    guard(
        {"--out": out, "--save": save},
        {"SOURCE": source},
        kept={"--checkpoint": checkpoint},
        overwrite=overwrite,
    )
    check_target({"--save": save}, overwrite=overwrite)
    rows = opened(source, column, chunk_rows, skip_bad_rows)
    with running(engine, device, scheduler, worker_timeout, checkpoint) as run:
        if out is not None:  # refused now, rather than after the fit
            run.engine.check(target(out, rows.n_features, rows, overwrite=overwrite, name="--out"))
        fitted.fit(rows)
        n_skipped = run.n_skipped
        if out is not None:
            written = fitted.transform(rows, out=out, overwrite=overwrite)
            say_written(written, out)
        if save is not None:
            fitted.save(save, note=note, overwrite=overwrite)
            say(f"saved {fitted!r} to {save}")
    say_skipped(n_skipped)


def say_written(written: Source | None, out: Path) -> None:
    """How many rows were written, where they can be read again."""
    if written is not None:
        say(f"wrote {written.n_samples:,} rows of {written.n_features} to {out}")


def made(name: str, options: dict[str, Any]) -> Repair:
    """The repair of that name with the options that were given, each of which it must have."""
    kind = Repair.by_name[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given.keys() - inspect.signature(kind).parameters.keys():
        flag = {"method": "whitening", "random_state": "seed"}.get(key, key).replace("_", "-")
        raise InputError(f"--{flag} does not go with --method {name}. Leave it out.")
    return kind(**given)


@examples(
    "isotropy apply repair.safetensors new.npy --out fixed.npy",
    "isotropy apply repair.safetensors corpus/ --column vector --out fixed",
)
def apply(
    repair: RepairArgument,
    source: SourceArgument,
    out: Annotated[Path, typer.Option(help=OUT_HELP, show_default=False)],
    overwrite: OverwriteOption = False,
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    worker_timeout: WorkerTimeoutOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Treat SOURCE with a saved repair, row by row, in order.

    The output takes its name only when it is whole. A warning says where a sample of SOURCE is
    far from the rows that the repair was fitted on, and where the repair is one for token rows that
    pooled rows must not be treated with.
    """
    inputs = {"REPAIR": repair, "SOURCE": source}
    guard({"--out": out}, inputs, overwrite=overwrite)
    fitted = loaded(repair, source)
    rows = opened(source, column, chunk_rows, skip_bad_rows)
    with running(engine, device, scheduler, worker_timeout, None) as run:
        written = fitted.transform(rows, out=out, overwrite=overwrite)
        say_written(written, out)
        n_skipped = run.n_skipped
    say_skipped(n_skipped)
    warn_if_of_tokens(fitted)
    warn_if_far(fitted, rows)


def loaded(repair: Path, source: str) -> Repair:
    """The saved repair, with a hint where the source is one, and so the two are swapped."""
    try:
        return load(repair)
    except RepairFileError as error:
        try:
            load(source)
        except RepairFileError:
            raise error from None
        raise InputError(
            f"the repair comes first, then the vectors, got {str(repair)!r} first. Run: "
            f"isotropy apply {shlex.quote(source)} {shlex.quote(str(repair))} --out ..."
        ) from None


def warn_if_of_tokens(fitted: Repair) -> None:
    """Warn where the repair is for token rows, and treating their means is not the same."""
    if fitted.level_ == "token" and not is_affine(fitted):
        warnings.warn(
            f"apply: {type(fitted).__name__} was chosen for the rows of tokens and is not affine, "
            "so rows that are already pooled do not become what was tested. Use `isotropy embed "
            "--repair`, which treats tokens before it pools them.",
            IsotropyWarning,
            stacklevel=2,
        )


def warn_if_far(fitted: Repair, source: Source) -> None:
    """Warn where a sample of the source is far from the rows that the repair was fitted on."""
    if fitted.moments_ is None:
        return
    with contextlib.suppress(InputError):  # a sample of bad rows only, which were left out
        found = shift(fitted.moments_, Excerpt(source), DIRECTIONS)
        if found.large:
            warnings.warn(
                f"apply: {found}. {found.n_samples:,} of {source.n_samples:,} rows were looked "
                f"at; {type(fitted).__name__} should be fitted on rows like these.",
                IsotropyWarning,
                stacklevel=2,
            )

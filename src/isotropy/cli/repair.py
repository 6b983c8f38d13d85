"""isotropy repair and isotropy apply: fit a repair to a file, and treat files with it."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from isotropy.cli.common import (
    CheckpointOption,
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    Method,
    SchedulerOption,
    SkipOption,
    SourceArgument,
    opened,
    running,
    say,
    say_skipped,
)
from isotropy.errors import InputError, IsotropyWarning, NotAffineError
from isotropy.repairs import Repair, load
from isotropy.repairs.base import target
from isotropy.repairs.excerpt import Excerpt
from isotropy.repairs.files import check_target
from isotropy.repairs.shift import shift
from isotropy.sources import Source

DIRECTIONS = 1024  # that a shift is looked for in, so that a small file does not take minutes

OutOption = Annotated[
    Path | None,
    typer.Option(
        help="File for the repaired rows: .npy, .parquet, .safetensors or .vec; a name without "
        "suffix is a folder of Parquet parts, which --engine dask needs."
    ),
]


def repair(
    source: SourceArgument,
    method: Annotated[Method, typer.Option(help="Which repair.", show_default=False)],
    out: OutOption = None,
    save: Annotated[
        Path | None, typer.Option(help="File for the fitted repair, which `apply` takes.")
    ] = None,
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
        str | None, typer.Option(help="Remove directions from the top or the bottom [top].")
    ] = None,
    whitening: Annotated[str | None, typer.Option(help="whiten: zca or pca [zca].")] = None,
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
    checkpoint: CheckpointOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Fit a repair to SOURCE, save it, and write the repaired rows.

    Examples:

      isotropy repair vectors.npy --method all-but-the-top --out fixed.npy --save repair.safetensors

      isotropy repair tokens.parquet --method cluster-removal --n-clusters 27 --n-components 12
      --out fixed.parquet
    """
    if out is None and save is None:
        raise InputError("repair: --out or --save must be given; otherwise nothing is kept.")
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
    rows = opened(source, column, chunk_rows, skip_bad_rows, "repair")
    if save is not None:
        check_target(save)
    with running(engine, device, scheduler, checkpoint, "repair") as run:
        if out is not None:  # refused now, rather than after the fit
            run.engine.check(target(out, rows.n_features, rows, "repair"))
        fitted.fit(rows)
        n_skipped = run.n_skipped
        if out is not None:
            written = fitted.transform(rows, out=out)
            say(f"wrote {written.n_samples:,} rows of {written.n_features} to {out}")
        if save is not None:
            fitted.save(save, note=note)
            say(f"saved {fitted!r} to {save}")
    say_skipped(n_skipped)


def made(name: str, options: dict[str, Any]) -> Repair:
    """The repair of that name with the options that were given, each of which it must have."""
    kind = Repair.by_name[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given.keys() - inspect.signature(kind).parameters.keys():
        flag = {"method": "whitening", "random_state": "seed"}.get(key, key).replace("_", "-")
        raise InputError(f"repair: --{flag} does not go with --method {name}. Leave it out.")
    return kind(**given)


def apply(
    repair: Annotated[Path, typer.Argument(metavar="REPAIR", help="File that --save wrote.")],
    source: SourceArgument,
    out: Annotated[
        Path,
        typer.Option(
            help="File for the repaired rows: .npy, .parquet, .safetensors or .vec; a name "
            "without suffix is a folder of Parquet parts.",
            show_default=False,
        ),
    ],
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Treat SOURCE with a saved repair, row by row, in order.

    The output takes its name only when it is whole. A warning says where a sample of SOURCE is
    far from the rows that the repair was fitted on, and where the repair is one for token rows that
    pooled rows must not be treated with.

    Examples:

      isotropy apply repair.safetensors new.npy --out fixed.npy

      isotropy apply repair.safetensors corpus/ --column embedding --engine dask --out fixed
    """
    fitted = load(repair)
    rows = opened(source, column, chunk_rows, skip_bad_rows, "apply")
    with running(engine, device, scheduler, None, "apply") as run:
        written = fitted.transform(rows, out=out)
        say(f"wrote {written.n_samples:,} rows of {written.n_features} to {out}")
        n_skipped = run.n_skipped
    say_skipped(n_skipped)
    warn_if_of_tokens(fitted)
    warn_if_far(fitted, rows)


def warn_if_of_tokens(fitted: Repair) -> None:
    """Warn where the repair is for token rows, and treating their means is not the same."""
    if fitted.level_ != "token":
        return
    try:
        fitted.affine()
    except NotAffineError:
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

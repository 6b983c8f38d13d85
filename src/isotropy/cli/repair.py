"""isotropy repair, apply and show: fit a repair, apply it to files, and describe it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from typer import Option

from isotropy import checks
from isotropy.cli import common
from isotropy.codecs import Codec, load, load_with_header
from isotropy.errors import InputError, RepairFileError, one_line, warn, without_secrets
from isotropy.repairs import (
    Chain,
    Origin,
    PerGroup,
    Repair,
    Rotate,
    check_target,
    open_target,
)
from isotropy.sources import Excerpt, Source, as_source, guard, listed
from isotropy.tables import json_line
from isotropy.writing import is_stream

SAMPLED = 10_000  # rows from the beginning of a stream, in which drift is looked for
LONGEST = 2000  # characters of a line
OUT_HELP = (
    f"File for the repaired vectors: {common.VECTOR_FILES}, which --engine dask needs. "
    f"{common.NEW_COLUMN}"
)
METHODS = [*Repair.by_name, Rotate.name]
OF_ONE = {"whitening": "whiten", "rotation": "rotate"}  # options that are `method` of one repair


@common.command(
    "isotropy repair vectors.npy --method all-but-the-top --out fixed.npy "
    "--save repair.safetensors",
    "isotropy repair vectors.parquet --method whiten --power 0.5 --out fixed.parquet",
    "isotropy repair vectors.parquet --method center --group-column language "
    "--save repair.safetensors",
    "isotropy repair vectors.npy --method center,rotate --save repair.safetensors",
)
def repair(
    source: common.SourceArgument,
    *,
    method: Annotated[
        str,
        Option(
            help=f"The repair to fit: {', '.join(METHODS)}. Several, separated by commas, are "
            "fitted one after another and saved as one.",
            show_default=False,
            autocompletion=common.among(*METHODS),
        ),
    ],
    out: Annotated[str | None, Option(help=OUT_HELP)] = None,
    save: Annotated[
        Path | None, Option(help="File for the fitted repair, to be used with `apply`.")
    ] = None,
    overwrite: common.OverwriteOption = False,
    n_clusters: Annotated[
        int | None, Option(help="Number of clusters [27]; cluster-removal only.")
    ] = None,
    n_components: Annotated[
        int | None,
        Option(
            help="Directions to remove [all-but-the-top: 1 % of the dimensions, cluster-removal: "
            "12] or to keep [whiten: all]."
        ),
    ] = None,
    side: Annotated[
        str | None,
        Option(
            help="Remove directions from the top or the bottom of the spectrum [top].",
            autocompletion=common.among("top", "bottom"),
        ),
    ] = None,
    whitening: Annotated[
        str | None,
        Option(help="zca or pca [zca]; whiten only.", autocompletion=common.among("zca", "pca")),
    ] = None,
    power: Annotated[
        float | None, Option(help="1 whitens fully, 0.5 half-way [1]; whiten only.")
    ] = None,
    eps: Annotated[
        float | None, Option(help="Smallest eigenvalue, relative to their mean; whiten only.")
    ] = None,
    rotation: Annotated[
        str | None,
        Option(
            help="itq (learned from the vectors), random or hadamard (random and fast) [itq]; "
            "rotate only.",
            autocompletion=common.among("itq", "random", "hadamard"),
        ),
    ] = None,
    normalize: Annotated[
        bool, Option("--normalize", help="Scale the repaired vectors to length one.")
    ] = False,
    seed: Annotated[
        int | None,
        Option(help="Seed of the clustering or rotation [0]; cluster-removal and rotate only."),
    ] = None,
    group_column: common.GroupColumnOption = None,
    note: Annotated[str, Option(help="A note to store in the saved file.")] = "",
    origin: common.OriginOption = None,
    checkpoint: common.CheckpointOption = None,
    options: common.SourceOptions,
) -> None:
    """Fit a repair to SOURCE, save it, and write the repaired vectors.

    Which repair helps, if any, depends on the task: ask `isotropy advise`.
    """
    if out is None and save is None:
        raise InputError("--out or --save must be given; otherwise nothing is kept.")
    given = {
        "n_clusters": n_clusters,
        "n_components": n_components,
        "side": side,
        "whitening": whitening,
        "rotation": rotation,
        "power": power,
        "eps": eps,
        "seed": seed,
    }
    fitted = made(method, given, normalize)
    grouping = {} if group_column is None else {"groups": group_column}
    fitted = PerGroup(fitted) if grouping else fitted
    save = common.destination(save)
    guard(
        {"--out": out, "--save": save},
        {"SOURCE": source},
        kept={"--checkpoint": checkpoint},
        overwrite=overwrite,
    )
    check_target({"--save": save}, overwrite=overwrite)
    rows = options.open(source)
    made_by = Origin.from_dict(common.origin_of(rows, origin))
    with options.running() as engine:
        if out is not None:  # refused now, rather than after the fit
            engine.check(open_target(out, rows.n_features, rows, overwrite=overwrite, name="--out"))
        fitted.fit(rows, checkpoint=checkpoint, **grouping)
        if n_dissolved := getattr(fitted, "n_dissolved_", 0):
            common.say(
                f"{n_dissolved} of {n_dissolved + fitted.n_clusters_} clusters had too few rows"
            )
        if out is not None:
            write(fitted, rows, out, overwrite, **grouping)
        if save is not None:
            fitted.save(save, note=note, origin=made_by, overwrite=overwrite)
            common.say(f"saved {fitted!r} to {save}")
    common.say_left_out(rows.n_samples - fitted.n_samples_seen_)


def write(fitted: Repair | Codec, rows: Source, out: str, overwrite: bool, **grouping: str) -> int:
    """Write the repaired rows or codes and say so; returns the number of rows left out."""
    n_skipped = fitted.write(rows, out, overwrite=overwrite, **grouping)
    if not is_stream(out):
        codes = isinstance(fitted, Codec)
        width = fitted.n_columns if codes else len(fitted.get_feature_names_out())
        n_rows = rows.n_samples - n_skipped
        common.say(f"wrote {n_rows:,} rows of {width} to {without_secrets(out)}")
    return n_skipped


def made(method: str, options: dict[str, Any], normalize: bool) -> Repair:
    """The repair of that name, or the chain of several, with the options that were given."""
    parts = []
    for name in method.split(","):
        kinds = Repair.by_name | Repair.on_request_by_name
        parts.append(kinds[checks.choice(name.strip(), "--method", METHODS)]())
    for option, value in options.items():
        if value is not None:
            flag = f"--{option.replace('_', '-')}"
            takers = [(one, key) for one in parts if (key := parameter(option, one))]
            if not takers:
                raise InputError(f"{flag} can't be used with --method {method}. Leave it out.")
            if len(takers) > 1 and option != "seed":
                raise InputError(
                    f"{flag} must be for one repair, got {len(takers)} that have it in {method}. "
                    "Leave it out, or fit an isotropy.Chain in Python."
                )
            for one, key in takers:
                one.set_params(**{key: value})
    found = parts[0] if len(parts) == 1 else Chain(parts)
    return found.set_params(normalize=normalize)  # type: ignore[no-any-return]


def parameter(option: str, repair: Repair) -> str:
    """The parameter of a repair that an option sets; empty if it has none."""
    if option in OF_ONE:
        return "method" if repair.name == OF_ONE[option] else ""
    name = "random_state" if option == "seed" else option
    return name if name in repair.get_params() else ""


@common.command(
    "isotropy apply repair.safetensors new.npy --out fixed.npy",
    "isotropy apply repair.safetensors corpus/ --column vector --out fixed",
    "isotropy apply codec.safetensors new.npy --out codes.npy",
    "isotropy apply repair.safetensors - --out - --format jsonl < new.jsonl > fixed.jsonl",
)
def apply(
    repair: common.RepairArgument,
    source: common.SourceArgument,
    *,
    out: Annotated[str, Option(help=OUT_HELP, show_default=False)],
    overwrite: common.OverwriteOption = False,
    group_column: common.GroupColumnOption = None,
    origin: common.OriginOption = None,
    format: Annotated[
        Literal["arrow", "jsonl"] | None,
        Option(help="Format of both streams if SOURCE and --out are -.", show_default=False),
    ] = None,
    options: common.SourceOptions,
) -> None:
    """Apply a saved repair or codec to the vectors in SOURCE.

    A codec writes the codes of the repaired vectors: a .npy file of uint8 or int8, for one.

    Rows keep their order, and the output file appears only when it is complete. You are warned if
    SOURCE comes from another model than the vectors the repair was fitted on, if a sample of it has
    drifted from them (see `watch`), or if the repair is for the vectors of tokens and can't be
    applied after pooling.

    With - for both SOURCE and --out, rows are streamed from standard input to standard output, with
    their other columns or fields: an Arrow IPC stream, or JSON lines. A stream that fails in the
    middle ends there, with exit code 2.
    """
    if source == "-" or format is not None:
        if (source, str(out)) != ("-", "-") or format is None:
            raise InputError(
                "SOURCE -, --out - and --format must be given together, for standard input and "
                "output. Give all three, or name files."
            )
        apply_to_stream(load(repair), format, options, origin)
        return
    inputs = {"REPAIR": repair, "SOURCE": source}
    guard({"--out": out}, inputs, overwrite=overwrite)
    fitted = loaded(repair, source)
    expect_grouping(fitted, group_column)
    grouping = {} if group_column is None else {"groups": group_column}
    rows = options.open(source)
    common.warn_of_origin("apply", common.origin_of(rows, origin), fitted)
    with options.running():
        n_skipped = write(fitted, rows, out, overwrite, **grouping)
    common.say_left_out(n_skipped)
    if isinstance(fitted, Repair):
        warn_if_unlike(fitted, rows, group_column=group_column)


def apply_to_stream(
    fitted: Repair | Codec, format: str, options: common.SourceOptions, origin: list[str] | None
) -> None:
    """Repair standard input, batch by batch, and write it to standard output."""
    from isotropy.sources import streams

    if isinstance(fitted, Codec):
        raise InputError("REPAIR must not be a codec for standard input. Name files instead of -.")
    if isinstance(fitted, PerGroup):
        raise InputError("REPAIR must have no groups for standard input. Name files instead of -.")
    if options.engine != "local":
        raise InputError(f"--engine must be local for standard input, got {options.engine}.")
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("SOURCE - reads standard input, got a terminal. Pipe vectors to it.")
    sample: list[Any] = []
    n_seen = n_skipped = 0

    def seen(rows: Any, n_bad: int) -> None:
        nonlocal n_seen, n_skipped
        if n_seen < SAMPLED:
            sample.append(rows[: SAMPLED - n_seen])
        n_seen, n_skipped = n_seen + len(rows), n_skipped + n_bad

    rows = fitted.row_map(skip_bad_rows=options.skip_bad_rows, seen=seen)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    if format == "arrow":
        streams.map_arrow(source, target, rows, options.column)
    else:
        streams.map_jsonl(source, target, rows, options.column, options.chunk_rows)
    common.say_left_out(n_skipped)
    if n_seen:
        first = as_source(np.concatenate(sample))
        common.warn_of_origin("apply", common.origin_of(first, origin), fitted)
        warn_if_unlike(fitted, first, n_seen)


def expect_grouping(fitted: Repair | Codec, group_column: str | None) -> None:
    """Raise unless a column of groups is given just where the repair has groups."""
    if isinstance(fitted, PerGroup) and group_column is None:
        known = listed(list(fitted.repairs_), 5)
        raise InputError(
            f"--group-column must be given for a repair with groups ({known}). Name the column of "
            "SOURCE that holds them."
        )
    if group_column is not None and not isinstance(fitted, PerGroup):
        raise InputError(
            f"--group-column can't be used with {type(fitted).__name__}, which has one map for all "
            "rows. Leave it out."
        )


def loaded(repair: Path, source: str, command: str = "apply") -> Repair | Codec:
    """The saved repair or codec, with a hint if the two arguments were swapped."""
    try:
        return load(repair)
    except RepairFileError as error:
        try:
            load(source)
        except RepairFileError:
            raise error from None
        line = f"isotropy {command} {shlex.quote(source)} {shlex.quote(str(repair))}"
        raise InputError(
            f"REPAIR must come before SOURCE, got {str(repair)!r} first. Run: {line}"
            f"{' --out ...' if command == 'apply' else ''}"
        ) from None


def warn_if_unlike(
    fitted: Repair, source: Source, n_rows: int | None = None, group_column: str | None = None
) -> None:
    """Warn if the repair is for tokens, or if a sample of the source has drifted, as `watch` says.

    The source has `n_rows` rows, by default its own number.
    """
    name = type(fitted).__name__
    if fitted.level_ == "token" and not fitted.is_affine:
        warn(
            f"apply: {name} was chosen for the vectors of tokens and is not affine, so it does "
            "something else to vectors that are already pooled. Use `isotropy embed --repair`, "
            "which repairs tokens before pooling them."
        )
    if fitted.moments_ is None:
        return
    grouping: dict[str, Any] = {} if group_column is None else {"groups": group_column}
    with contextlib.suppress(InputError):  # every row of the sample is bad and was left out
        found = fitted.drift(Excerpt(source, carry=bool(grouping)), **grouping)
        if found.drifted:
            warn(
                f"apply: {found} That is a sample of {n_rows or source.n_samples:,} rows. Fit "
                f"{name} on rows like these."
            )


@common.command("isotropy show repair.safetensors", "isotropy show codec.safetensors --json")
def show(repair: common.RepairArgument, as_json: common.JsonOption = False) -> None:
    """Describe a saved repair or codec: what it is, what it was fitted on, how to apply it."""
    fitted, header = load_with_header(repair)
    file = shlex.quote(str(repair))
    if isinstance(fitted, Codec):
        show_codec(fitted, header, file, as_json)
        return
    of_tokens = f"isotropy embed MODEL TEXTS --repair {file} --out fixed.parquet"
    of_rows = f"isotropy apply {file} vectors.npy --out fixed.npy"
    if isinstance(fitted, PerGroup):
        of_rows = f"isotropy apply {file} vectors.parquet --group-column GROUP --out fixed.parquet"
    found: dict[str, Any] = header | {
        "level": fitted.level_,
        "origin": fitted.origin_.to_dict(),
        "n_features_out": len(fitted.get_feature_names_out()),
        "affine": fitted.is_affine,
        "apply": of_tokens if fitted.level_ == "token" else of_rows,
    }
    if as_json:
        typer.echo(json_line(found))
        return
    lines = {
        "repair": described(found["method"], found["params"]),
        "groups": groups(fitted),
        "fitted on": f"{found['n_samples']:,} rows of {found['n_features']} dimensions",
        "output": f"rows of {found['n_features_out']} dimensions",
        "level": {
            "token": "token: the rows of tokens, before pooling",
            "sentence": "sentence: the rows of texts, after pooling",
        }.get(found["level"], "not recorded: rows like those it was fitted on"),
        "form": "one matrix and one bias" if found["affine"] else "not affine",
        "origin": str(fitted.origin_) or "not recorded",
        "note": found["note"] or "none",
        "saved": f"{found['time']} by isotropy {found['versions'].get('isotropy', 'unknown')}",
        "apply it": found["apply"],
    }
    say_lines(lines)


def show_codec(fitted: Codec, header: dict[str, Any], file: str, as_json: bool) -> None:
    """Describe a codec: what its codes are, and how large."""
    found: dict[str, Any] = header | {
        "dtype": fitted.dtype,
        "n_columns": fitted.n_columns,
        "n_bytes": fitted.n_bytes,
        "n_bytes_stored": fitted.n_bytes_stored,
        "apply": f"isotropy apply {file} vectors.npy --out codes.npy",
    }
    if as_json:
        typer.echo(json_line(found))
        return
    in_memory = f"{fitted.n_bytes} in memory, {fitted.n_bytes_stored} stored"
    same = fitted.n_bytes == fitted.n_bytes_stored
    n_floats = 4 * found["n_features"]
    say_lines(
        {
            "codec": " ".join(repr(fitted).split()),
            "fitted on": f"{found['n_samples']:,} rows of {found['n_features']} dimensions",
            "codes": f"{fitted.n_columns} columns of {fitted.dtype}",
            "bytes": f"{fitted.n_bytes if same else in_memory}, instead of {n_floats} of float32",
            "origin": str(fitted.origin_) or "not recorded",
            "note": found["note"] or "none",
            "saved": f"{found['time']} by isotropy {found['versions'].get('isotropy', 'unknown')}",
            "apply it": found["apply"],
        }
    )


def say_lines(lines: dict[str, str]) -> None:
    """Print what there is, name by name."""
    for name, text in lines.items():
        if text:
            typer.echo(f"{name:9}  {one_line(text, LONGEST)}")


def described(method: str, params: dict[str, Any]) -> str:
    """A method with its parameters, as it would be written."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(shown, value))}]"
        return described(**value) if isinstance(value, dict) else repr(value)

    return f"{method}({', '.join(f'{name}={shown(value)}' for name, value in params.items())})"


def groups(fitted: Repair) -> str:
    """The groups of a repair and their rows, if it has any."""
    if not isinstance(fitted, PerGroup):
        return ""
    sizes = [f"{label} ({one.n_samples_seen_:,} rows)" for label, one in fitted.repairs_.items()]
    return f"{len(sizes)}: {', '.join(sizes)}"

"""isotropy embed: from a model and texts to a file of vectors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from isotropy.checks import Array
from isotropy.cli.common import (
    FILES_OF_ROWS,
    POOL_HELP,
    BatchOption,
    CacheOption,
    LayerOption,
    LengthOption,
    Level,
    ModelArgument,
    ModelDeviceOption,
    OverwriteOption,
    Pool,
    RepairOption,
    SpecialOption,
    TextColumnsOption,
    TextsArgument,
    examples,
    offline_unless_reached,
    one_layer,
    opened_texts,
    say,
    shown,
)
from isotropy.engines import map_rows
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models.encoder import Encoder, cut_off
from isotropy.models.loading import pools_itself
from isotropy.repairs import Repair, load
from isotropy.repairs.base import target
from isotropy.sources.guard import guard

WORD_FILES = (".vec", ".txt")


@examples(
    "isotropy embed bert-base-cased sentences.txt --out vectors.parquet",
    "isotropy embed bert-base-cased new.txt --repair repair.safetensors --out fixed.parquet",
    "isotropy embed ./my-model pairs.tsv --text-column sentence1 --pool tokens --out tokens.npy",
)
def embed(
    model: ModelArgument,
    texts: TextsArgument,
    out: Annotated[
        Path,
        typer.Option(
            help=f"File for the vectors: {FILES_OF_ROWS}. Parquet keeps the texts and what "
            "stands beside them.",
            show_default=False,
        ),
    ],
    overwrite: OverwriteOption = False,
    layer: LayerOption = None,
    pool: Annotated[
        Pool | None,
        typer.Option(help=f"{POOL_HELP}; or tokens, a row for each.", show_default=False),
    ] = None,
    special_tokens: SpecialOption = False,
    device: ModelDeviceOption = None,
    batch_tokens: BatchOption = None,
    max_length: LengthOption = None,
    text_column: TextColumnsOption = None,
    cache: CacheOption = None,
    repair: RepairOption = None,
    level: Annotated[
        Level | None,
        typer.Option(
            help="Whether --repair treats each token before pooling, or the pooled rows [what its "
            "file says, else sentence].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the vectors of TEXTS by MODEL, in order and in bounded memory."""
    guard(
        {"--out": out},
        {"MODEL": model, "TEXTS": texts, "--repair": repair},
        kept={"--cache": cache},
        overwrite=overwrite,
    )
    number = one_layer(layer)
    fitted = None if repair is None else load(repair)
    treated = treated_level(fitted, level, pool)
    offline_unless_reached(model)
    opened = opened_texts(texts, text_column)
    default = "own" if pool is None and pools_itself(model) else "mean"
    encoder = Encoder(
        model,
        layer=number,
        pool=pool or default,
        special_tokens=special_tokens,
        device=device,
        batch_tokens=batch_tokens,
        max_length=max_length,
        cache=cache,
    )
    if fitted is not None:
        encoder = encoder.with_repair(fitted, treated)
    with warnings.catch_warnings(), shown():
        warnings.simplefilter("ignore", IsotropyWarning)  # the number of cut texts comes below
        source = encoder.source(opened)
        source.text_column = "word" if out.suffix in WORD_FILES else None
        sink = target(out, source.n_features, source, overwrite=overwrite, name="--out")
        map_rows(source, _as_they_are, sink)
    if source.n_truncated:
        typer.echo(cut_off(source.n_truncated, opened.n_texts, encoder.max_length), err=True)
    say(f"wrote {source.n_samples:,} rows of {source.n_features} to {out}")


def treated_level(fitted: Repair | None, asked: Level | None, pool: Pool | None) -> str:
    """The level that the arguments and the file of the repair give."""
    if fitted is None:
        if asked is not None:
            raise InputError("--level goes with --repair, got none. Name a repair.")
        return ""
    level = str(asked or fitted.level_ or Level.sentence)
    if level == Level.sentence and pool == Pool.tokens:
        raise InputError(
            "--repair must be of level token where --pool is tokens, got sentence. Say "
            "--level token, or pool."
        )
    return level


def _as_they_are(rows: Array) -> Array:
    return rows

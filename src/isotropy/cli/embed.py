"""isotropy embed: encode texts into a file of vectors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from isotropy.checks import Array
from isotropy.cli.common import (
    POOL_HELP,
    VECTOR_FILES,
    CacheOption,
    LayerOption,
    ModelArgument,
    OverwriteOption,
    RepairOption,
    SpecialOption,
    TextOptions,
    TextsArgument,
    command,
    offline_unless_reached,
    one_layer,
    say,
    shown,
)
from isotropy.engines import map_rows
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models import Encoder, cut_off
from isotropy.repairs import Repair, load, open_target
from isotropy.sources import guard

WORD_FILES = (".vec", ".txt")


@command(
    "isotropy embed bert-base-cased sentences.txt --out vectors.parquet",
    "isotropy embed bert-base-cased new.txt --repair repair.safetensors --out fixed.parquet",
    "isotropy embed ./my-model pairs.tsv --text-column sentence1 --pool tokens --out tokens.npy",
)
def embed(
    model: ModelArgument,
    texts: TextsArgument,
    *,
    out: Annotated[
        Path,
        Option(
            help=f"File for the vectors: {VECTOR_FILES}. Parquet also keeps the texts and the "
            "other columns.",
            show_default=False,
        ),
    ],
    overwrite: OverwriteOption = False,
    layer: LayerOption = None,
    pool: Annotated[
        Literal["tokens", "mean", "cls", "last", "own"] | None,
        Option(help=f"{POOL_HELP}; tokens keeps them all.", show_default=False),
    ] = None,
    special_tokens: SpecialOption = False,
    cache: CacheOption = None,
    repair: RepairOption = None,
    level: Annotated[
        Literal["token", "sentence"] | None,
        Option(
            help="Apply --repair to tokens before pooling, or to the pooled vectors [as its file "
            "says, else sentence].",
            show_default=False,
        ),
    ] = None,
    options: TextOptions,
) -> None:
    """Encode TEXTS with MODEL and write the vectors to a file.

    The vectors are in the order of the texts. Memory use does not grow with their number.
    """
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
    opened = options.open(texts)
    encoder = Encoder(
        model,
        layer=number,
        pool=pool,
        special_tokens=special_tokens,
        device=options.device,
        batch_tokens=options.batch_tokens,
        max_length=options.max_length,
        cache=cache,
    )
    if fitted is not None:
        encoder = encoder.with_repair(fitted, treated)
    with warnings.catch_warnings(), shown():
        warnings.simplefilter("ignore", IsotropyWarning)  # their number is told below
        source = encoder.source(opened)
        source.text_column = "word" if out.suffix in WORD_FILES else None
        sink = open_target(out, source.n_features, source, overwrite=overwrite, name="--out")
        map_rows(source, _as_they_are, sink)
    if source.n_truncated:
        typer.echo(cut_off(source.n_truncated, opened.n_texts, encoder.max_length), err=True)
    say(f"wrote {source.n_samples:,} rows of {source.n_features} to {out}")


def treated_level(fitted: Repair | None, asked: str | None, pool: str | None) -> str:
    """The level at which the repair is applied: as asked, else as its file says."""
    if fitted is None:
        if asked is not None:
            raise InputError("--level needs --repair, got none. Name a repair.")
        return ""
    level = asked or fitted.level_ or "sentence"
    if level == "sentence" and pool == "tokens":
        raise InputError(
            "--level must be token with --pool tokens, got sentence. Add --level token, or "
            "choose another --pool."
        )
    return level


def _as_they_are(rows: Array) -> Array:
    return rows

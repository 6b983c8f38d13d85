"""isotropy embed: encode texts into a file of vectors."""

from __future__ import annotations

import os
import warnings
from typing import Annotated, Literal

import typer
from typer import Option

from isotropy.cli import common
from isotropy.engines import map_rows, using
from isotropy.errors import InputError, IsotropyWarning, without_secrets
from isotropy.models import Encoder, cut_off
from isotropy.progress import ProgressBar
from isotropy.repairs import load, open_target
from isotropy.sources import guard

WORD_FILES = (".vec", ".txt")


@common.command(
    "isotropy embed bert-base-cased sentences.txt --out vectors.parquet",
    "isotropy embed bert-base-cased new.txt --repair repair.safetensors --out fixed.parquet",
    "isotropy embed ./my-model pairs.tsv --text-column sentence1 --pool tokens --out tokens.npy",
)
def embed(
    model: common.ModelArgument,
    texts: common.TextsArgument,
    *,
    out: Annotated[
        str,
        Option(
            help=f"File for the vectors: {common.VECTOR_FILES}. Parquet also keeps the texts and "
            "the other columns. Or the URL of a new table, such as lance:///folder#table. The "
            "column of vectors is `embedding`, unless a URL names another; an interrupted run to a "
            "database resumes.",
            show_default=False,
        ),
    ],
    overwrite: common.OverwriteOption = False,
    layer: common.LayerOption = None,
    pool: Annotated[
        Literal["tokens", "mean", "cls", "last", "own"] | None,
        Option(help=f"{common.POOL_HELP}; tokens keeps them all.", show_default=False),
    ] = None,
    special_tokens: common.SpecialOption = False,
    cache: common.CacheOption = None,
    repair: common.RepairOption = None,
    level: Annotated[
        Literal["token", "sentence"] | None,
        Option(
            help="Apply --repair to tokens before pooling, or to the pooled vectors [as its file "
            "says, else sentence].",
            show_default=False,
        ),
    ] = None,
    options: common.TextOptions,
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
    number = common.one_layer(layer)
    fitted = None if repair is None else load(repair)
    if fitted is None and level is not None:
        raise InputError("--level needs --repair, got none. Name a repair.")
    treated = level or (fitted.level_ if fitted is not None else "") or "sentence"
    if fitted is not None and treated == "sentence" and pool == "tokens":
        raise InputError(
            "--level must be token with --pool tokens, got sentence. Add --level token, or "
            "choose another --pool."
        )
    common.offline_unless_reached(model)
    opened = options.open(texts)
    encoder = Encoder(
        model,
        layer=number,
        pool=pool,
        special_tokens=special_tokens,
        cache=cache,
        **options.encoding,
    )
    if fitted is not None:
        common.warn_of_origin("embed", encoder.origin(treated), fitted)
        encoder = encoder.with_repair(fitted, treated)
    with warnings.catch_warnings(), ProgressBar("rows") as bar, using(progress=bar):
        warnings.filterwarnings("ignore", "Encoder: ", IsotropyWarning)  # their number comes below
        source = encoder.source(opened)
        source.text_column = "word" if os.path.splitext(out)[1] in WORD_FILES else None
        sink = open_target(
            out,
            source.n_features,
            source,
            overwrite=overwrite,
            name="--out",
            origin=source.origin(),
            job="embed",
        )
        map_rows(source, lambda rows: rows, sink)
        n_truncated = source.count_truncated()  # also those of an interrupted run
    if n_truncated:
        typer.echo(cut_off(n_truncated, opened.n_texts, encoder.max_length), err=True)
    common.say(f"wrote {source.n_samples:,} rows of {source.n_features} to {without_secrets(out)}")

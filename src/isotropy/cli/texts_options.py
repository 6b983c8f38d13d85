"""Options of the commands that run a model over texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from isotropy.cli.common import TORCH_DEVICE, TerminalProgress, among
from isotropy.engines import using
from isotropy.errors import InputError
from isotropy.sources.texts import Texts, open_texts


class Pool(StrEnum):
    """How token rows become rows."""

    tokens = "tokens"
    mean = "mean"
    cls = "cls"
    last = "last"
    own = "own"


class Level(StrEnum):
    """Which rows a repair treats."""

    token = "token"
    sentence = "sentence"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model of transformers, sentence-transformers or model2vec: its name on the hub, a "
        "folder, or a .gguf file.",
        show_default=False,
    ),
]
TextsArgument = Annotated[
    str,
    typer.Argument(
        metavar="TEXTS",
        help="File of texts: .txt (a text a line), .tsv or .csv (with a header), .jsonl, each also "
        "with .gz. Blank texts are left out.",
        show_default=False,
    ),
]
LayerOption = Annotated[
    str | None,
    typer.Option(
        "--layer",
        help="Hidden layer: 0 is the embedding layer, -1 the last; or first-last, the average of "
        "the first and the last [-1].",
        show_default=False,
        autocompletion=among("-1", "0", "first-last"),
    ),
]
POOL_HELP = (
    "The row of a text: the mean, first (cls) or last of its tokens, or what a "
    "sentence-transformers model does itself [own where there is one, else mean]"
)
SpecialOption = Annotated[
    bool, typer.Option("--special-tokens", help="Count [CLS], </s> and their like as tokens.")
]
ModelDeviceOption = Annotated[str | None, typer.Option("--device", help=f"{TORCH_DEVICE}.")]
BatchOption = Annotated[
    int | None,
    typer.Option(help="Tokens of a batch, padding included [4096; on a GPU 65536].", min=1),
]
LengthOption = Annotated[
    int | None, typer.Option(help="Cut texts at this many tokens [what the model takes].", min=1)
]
TextColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--text-column",
        help="Column with the texts, where it is not text, sentence, question or both of "
        "sentence1 and sentence2; several times for more.",
        show_default=False,
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="ISOTROPY_CACHE",
        help="Folder that keeps the rows of all tokens, so that no text is run twice.",
    ),
]


def one_layer(layer: str | None, caller: str) -> int | str:
    """The layer that --layer names."""
    if layer is None:
        return -1
    if layer == "first-last":
        return layer
    try:
        return int(layer)
    except ValueError:
        raise InputError(
            f"{caller}: --layer must be a number or first-last, got {layer!r}."
        ) from None


def opened_texts(texts: str, columns: list[str] | None, caller: str) -> Texts:
    """The texts that the arguments describe; says how many were blank."""
    found = open_texts(texts, columns or None, caller)
    if found.n_blank:
        blank = f"{found.n_blank:,} blank {'text' if found.n_blank == 1 else 'texts'} left out"
        typer.echo(blank, err=True)
    return found


@contextlib.contextmanager
def shown() -> Iterator[TerminalProgress]:
    """Progress of passes over rows, shown on a terminal."""
    progress = TerminalProgress()
    with progress.bar, using(progress=progress):
        yield progress

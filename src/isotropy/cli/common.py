"""Options that commands share, and the run they describe."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from isotropy.engines import Engine, named, using
from isotropy.engines.run import Run
from isotropy.errors import InputError
from isotropy.models.texts import Texts, open_texts
from isotropy.repairs import Repair
from isotropy.sources import Source
from isotropy.sources import open as open_source
from isotropy.tables import json_line as json_line

PATIENCE = 3.0  # seconds


def offline_unless_reached(*names: str | None) -> None:
    """Keep the libraries below from retrying for a minute, where a name is not a local path.

    What they have in their cache is then used, or they fail at once.
    """
    away = any(name is not None and not os.path.exists(name) for name in names)
    if away and not reached():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when they are imported


def reached() -> bool:
    """Whether the hub answers, or is behind a proxy that is not asked."""
    if urllib.request.getproxies().keys() - {"no"}:  # no_proxy alone is no proxy
        return True
    place = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = place.port or (80 if place.scheme == "http" else 443)
    with contextlib.suppress(OSError), socket.create_connection((place.hostname, port), PATIENCE):
        return True
    return False


Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Ends the help of a command with these lines, each of which works as it stands.

    They are not wrapped, so that they can be copied; tests/cli/test_examples.py runs every one in
    a folder that holds the files they name.
    """
    epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])

    def ended(command: Command) -> Command:
        command.epilog = epilog  # type: ignore[attr-defined]
        return command

    return ended


def among(*names: str) -> Callable[[str], list[str]]:
    """Completes to those of the names that begin with what was typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def listed(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes the last of several names with commas between."""
    known = list(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [
            f"{before}{comma}{name}"
            for name in known
            if name.startswith(last) and name not in given
        ]

    return complete


class EngineName(StrEnum):
    """Where work can run."""

    local = "local"
    torch = "torch"
    dask = "dask"


Method = StrEnum("Method", {name: name for name in Repair.by_name})  # type: ignore[misc]
FILES_OF_ROWS = (
    ".npy, .parquet, .safetensors or .vec; a name without suffix is a folder of Parquet parts"
)
TORCH_DEVICE = "Torch device, such as cuda, cuda:1 or cpu [cuda where there is one]"

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="File, folder, glob or URL of vectors: .npy, .npz, .safetensors, .parquet, .arrow, "
        ".feather, .csv, .tsv, .jsonl, word2vec .txt, .vec and .bin, .fvecs, or a data set saved "
        "by datasets.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    EngineName,
    typer.Option("--engine", help="Threads of this process, a torch device, or a Dask cluster."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help=f"{TORCH_DEVICE}; goes with --engine torch.")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(help="Scheduler of --engine dask; without it, processes of this machine."),
]
WorkerTimeoutOption = Annotated[
    float | None,
    typer.Option(help="Seconds that --engine dask waits while there are no workers [300].", min=0),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(help="Folder that keeps what is done; the same command then goes on from it."),
]
ColumnOption = Annotated[
    str | None, typer.Option(help="Column, tensor or array with the vectors, where there are more.")
]
ChunkOption = Annotated[
    int | None, typer.Option(help="Rows of a chunk; by default about 64 MB of them.", min=1)
]
SkipOption = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave rows with NaN or infinity out, and count them."),
]

RepairArgument = Annotated[
    Path,
    typer.Argument(
        metavar="REPAIR",
        help="Saved repair: a file that --save of `repair` or `advise` wrote.",
        show_default=False,
    ),
]
RepairOption = Annotated[
    Path | None, typer.Option("--repair", help="Saved repair that rows go through first.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an output that exists.")
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print one JSON object; an error is one JSON line, {"error": ...}, on standard error.',
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of samples, folds, draws and clusterings.", min=0)
]


class Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Any) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s", style="cyan")


class TerminalProgress:
    """A bar for each pass on a terminal's standard error; nothing where that is not one."""

    def __init__(self) -> None:
        self.bar = Bar(
            TextColumn("pass {task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            Rate(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.task: Any = None
        self.n_passes = 0

    def begin(self, n_rows: int) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.n_passes += 1
        self.task = self.bar.add_task(str(self.n_passes), total=n_rows)

    def advance(self, n_rows: int) -> None:
        self.bar.advance(self.task, n_rows)


def destination(path: Path | None) -> Path | None:
    """Where an output goes: - is the standard output."""
    return Path("/dev/stdout") if path == Path("-") else path


@contextlib.contextmanager
def beside(out: Path | None) -> Iterator[None]:
    """Prints go to standard error where the standard output gets a file."""
    if out != Path("/dev/stdout"):
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def opened(source: str, column: str | None, chunk_rows: int | None, skip_bad_rows: bool) -> Source:
    """The source that the arguments describe."""
    return open_source(source, column=column, chunk_rows=chunk_rows, skip_bad_rows=skip_bad_rows)


@contextlib.contextmanager
def running(
    engine: EngineName,
    device: str | None,
    scheduler: str | None,
    worker_timeout: float | None,
    checkpoint: Path | None,
) -> Iterator[Run]:
    """The run that the arguments describe, with its progress shown on a terminal."""
    given: dict[str, dict[str, Any]] = {
        "torch": {"device": device},
        "dask": {"scheduler": scheduler, "worker_timeout": worker_timeout},
    }
    options: dict[str, Any] = {}
    for goes_with, values in given.items():
        for name, value in values.items():
            if value is not None and engine != goes_with:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} goes with --engine {goes_with}, got {engine}.")
            if value is not None:
                options[name] = value
    made: Engine = named(str(engine), **options)
    progress = TerminalProgress()
    try:
        with (
            progress.bar,
            using(made, checkpoint=checkpoint, progress=progress) as run,
        ):
            yield run
    finally:
        made.close()


def say(text: str) -> None:
    """A line for whoever sits at the terminal; nothing where the output is piped."""
    if sys.stdout.isatty():
        typer.echo(text)


def say_skipped(n_skipped: int) -> None:
    """How many rows were left out, wherever the output goes."""
    if n_skipped:
        typer.echo(f"{n_skipped:,} bad {'row' if n_skipped == 1 else 'rows'} left out", err=True)


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


def one_layer(layer: str | None) -> int | str:
    """The layer that --layer names."""
    if layer is None:
        return -1
    if layer == "first-last":
        return layer
    try:
        return int(layer)
    except ValueError as error:
        raise InputError(f"--layer must be a number or first-last, got {layer!r}.") from error


def opened_texts(texts: str, columns: list[str] | None) -> Texts:
    """The texts that the arguments describe; says how many were blank."""
    found = open_texts(texts, columns or None)
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

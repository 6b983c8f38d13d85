"""Options that commands share, and the run they describe."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from isotropy.engines import Engine, named, using
from isotropy.engines.run import Run
from isotropy.errors import InputError
from isotropy.repairs import Repair
from isotropy.sources import Source
from isotropy.sources import open as open_source

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


def opened(
    source: str, column: str | None, chunk_rows: int | None, skip_bad_rows: bool, caller: str
) -> Source:
    """The source that the arguments describe."""
    return open_source(
        source, column=column, chunk_rows=chunk_rows, skip_bad_rows=skip_bad_rows, caller=caller
    )


@contextlib.contextmanager
def running(
    engine: EngineName,
    device: str | None,
    scheduler: str | None,
    checkpoint: Path | None,
    caller: str,
) -> Iterator[Run]:
    """The run that the arguments describe, with its progress shown on a terminal."""
    for value, name, goes_with in ((device, "device", "torch"), (scheduler, "scheduler", "dask")):
        if value is not None and engine != goes_with:
            raise InputError(f"{caller}: --{name} goes with --engine {goes_with}, got {engine}.")
    options = {"device": device} if engine == "torch" else {}
    options |= {"scheduler": scheduler} if engine == "dask" else {}
    made: Engine = named(str(engine), **options)
    progress = TerminalProgress()
    try:
        with (
            progress.bar,
            using(made, checkpoint=checkpoint, progress=progress, caller=caller) as run,
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


def json_line(value: Any) -> str:
    """One line of JSON, with null for what is not finite."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    """value with null for what is undefined, as JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Options that commands share, and what is made from them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import urlsplit

import typer
from typer import Argument, Option

from isotropy import specs
from isotropy.codecs import Codec
from isotropy.engines import Engine, named, using
from isotropy.errors import InputError, public, warn, without_secrets
from isotropy.models import Texts, open_texts
from isotropy.progress import ProgressBar
from isotropy.repairs import Origin, Repair, origin_warning
from isotropy.repairs.origin import KINDS
from isotropy.sources import Source, open_source

PATIENCE = 3.0  # seconds


def offline_unless_reached(*names: str | None) -> None:
    """If a name is not a local path and the hub can't be reached, tell its libraries to go offline.

    They then use their cache or fail at once, instead of retrying for a minute.
    """
    away = any(name is not None and not os.path.exists(name) for name in names)
    if away and not reached():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when they are imported


def reached() -> bool:
    """Whether the hub answers, or is behind a proxy, which is not asked."""
    if urllib.request.getproxies().keys() - {"no"}:  # no_proxy alone is no proxy
        return True
    place = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = place.port or (80 if place.scheme == "http" else 443)
    with contextlib.suppress(OSError), socket.create_connection((place.hostname, port), PATIENCE):
        return True
    return False


def command(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a command: its help ends with the examples, each of which works as it stands.

    A parameter annotated with a dataclass of options becomes one option for each field, so that
    commands share options by sharing the record. Examples are not wrapped, so that they can be
    copied; tests/cli/test_examples.py runs each in a folder with the files they name.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(function, eval_str=True).parameters
        records: dict[str, Any] = {
            name: p.annotation for name, p in given.items() if is_dataclass(p.annotation)
        }

        @functools.wraps(function)
        def called(**values: Any) -> None:
            for name, record in records.items():
                own = {field.name: values.pop(field.name) for field in fields(record)}
                values[name] = record(**own)
            function(**values)

        parameters: list[inspect.Parameter] = []
        for name, parameter in given.items():
            found = _options(records[name]) if name in records else [parameter]
            parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        lines = ["\b", "Examples:", *(f"  {line}" for line in examples)]
        called.epilog = "\n".join(lines)  # type: ignore[attr-defined]
        return public(called)

    return declare


def _options(record: Any) -> list[inspect.Parameter]:
    """The fields of a record as parameters; its `__init__` has them, with their hints as text."""
    hints = get_type_hints(record, include_extras=True)
    fields = inspect.signature(record).parameters.values()
    return [field.replace(annotation=hints[field.name]) for field in fields]


def among(*names: str) -> Callable[[str], list[str]]:
    """Completes a name, or the last of several names separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{n}" for n in names if n.startswith(last) and n not in given]

    return complete


VECTOR_FILES = ".npy, .parquet, .safetensors or .vec, or a folder of Parquet parts (no suffix)"
NEW_COLUMN = (
    "Or the URL of a new column or table, such as 'lance:///folder?column=repaired#table'; an "
    "interrupted run resumes."
)
TORCH_DEVICE = "Torch device, such as cuda, cuda:1 or cpu [cuda if available]"
POOL_HELP = (
    "How the vectors of a text's tokens become one: their mean, the first (cls), the last, or "
    "the model's own pooling [own if it has one, else mean]"
)

SourceArgument = Annotated[
    str,
    Argument(
        metavar="SOURCE",
        help="File, folder, glob or URL of vectors: .npy, .npz, .safetensors, .parquet, .arrow, "
        ".feather, .csv, .tsv, .jsonl, word2vec .txt, .vec and .bin, each of these texts also as "
        ".gz, .fvecs, .fbin, .h5, .h5ad, .zarr, .gguf, .faiss, or a data set saved by datasets. "
        "Or a table: lance:///folder#table, 'postgresql://host/db?table=docs&column=embedding', "
        "qdrant://host:6333#collection.",
        show_default=False,
    ),
]
CheckpointOption = Annotated[
    Path | None,
    Option(help="Folder for finished parts; an interrupted run resumes where it stopped."),
]
ColumnOption = Annotated[
    str | None, Option(help="Column, tensor or array that holds the vectors, if there are several.")
]
GroupColumnOption = Annotated[
    str | None,
    Option(
        "--group-column",
        help="Column of SOURCE with the group of each row, such as a language, or query and "
        "document: each group has a repair of its own.",
        show_default=False,
    ),
]
RepairArgument = Annotated[
    Path,
    Argument(
        metavar="REPAIR",
        help="Saved repair (from `repair --save` or `advise --save`), or a saved codec.",
        show_default=False,
    ),
]
RepairOption = Annotated[
    Path | None, Option("--repair", help="Saved repair to apply to the vectors.")
]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Replace the output if it exists.")]
JsonOption = Annotated[
    bool,
    Option(
        "--json",
        help='Print one JSON object; an error is a JSON line, {"error": ...}, on standard error.',
    ),
]
OriginOption = Annotated[
    list[str] | None,
    Option(
        "--origin",
        metavar="NAME=VALUE",
        help="How the vectors were made: model, revision, layer, pooling, prompt, normalised "
        "(whether after the model's own Normalize) or dimension; repeatable [as SOURCE says, if "
        "`embed` wrote it].",
        show_default=False,
    ),
]
SeedOption = Annotated[
    int, Option("--seed", help="Seed for samples, folds, pairs and clusters.", min=0)
]
ModelArgument = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="A model for transformers, sentence-transformers or model2vec: its name on the hub, "
        "its folder, or a .gguf file.",
        show_default=False,
    ),
]
TextsArgument = Annotated[
    str,
    Argument(
        metavar="TEXTS",
        help="File of texts: .txt (one text per line), .tsv or .csv (with a header), or .jsonl, "
        "each also compressed as .gz. Blank texts are left out.",
        show_default=False,
    ),
]
LayerOption = Annotated[
    str | None,
    Option(
        "--layer",
        help="Hidden layer: 0 is the embedding layer, -1 the last one; first-last is the average "
        "of the first and the last [-1].",
        show_default=False,
        autocompletion=among("-1", "0", "first-last"),
    ),
]
SpecialOption = Annotated[
    bool, Option("--special-tokens", help="Count [CLS], </s> and the like as tokens.")
]
ModelDeviceOption = Annotated[str | None, Option("--device", help=f"{TORCH_DEVICE}.")]
CacheOption = Annotated[
    Path | None,
    Option(
        "--cache",
        envvar="ISOTROPY_CACHE",
        help="Folder that keeps the vectors of all tokens, so that no text is encoded twice.",
    ),
]


@dataclass(frozen=True)
class SourceOptions:
    """How the vectors of SOURCE are read, and where the work runs."""

    engine: Annotated[
        Literal["local", "torch", "dask"],
        Option(help="Run on threads of this process, a torch device, or a Dask cluster."),
    ] = "local"
    device: Annotated[str | None, Option(help=f"{TORCH_DEVICE}; needs --engine torch.")] = None
    scheduler: Annotated[
        str | None, Option(help="Address of the Dask scheduler [starts processes on this machine].")
    ] = None
    worker_timeout: Annotated[
        float | None,
        Option(help="Seconds that --engine dask waits if it has no workers [300].", min=0),
    ] = None
    column: ColumnOption = None
    chunk_rows: Annotated[
        int | None, Option(help="Rows per chunk [as many as take about 64 MB].", min=1)
    ] = None
    skip_bad_rows: Annotated[
        bool, Option("--skip-bad-rows", help="Leave out rows with NaN or infinity; count them.")
    ] = False

    def open(self, source: str) -> Source:
        return open_source(
            source, column=self.column, chunk_rows=self.chunk_rows, skip_bad_rows=self.skip_bad_rows
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[Engine]:
        """The engine that the options describe, in use, with progress shown on a terminal."""
        options: dict[str, dict[str, Any]] = {
            "torch": {"device": self.device},
            "dask": {"scheduler": self.scheduler, "worker_timeout": self.worker_timeout},
        }
        for engine, values in options.items():
            for name, value in values.items():
                if value is not None and engine != self.engine:
                    raise InputError(
                        f"--{name.replace('_', '-')} needs --engine {engine}, got {self.engine}."
                    )
        given = {k: v for k, v in options.get(self.engine, {}).items() if v is not None}
        made = named(self.engine, **given)
        try:
            with ProgressBar("rows") as bar, using(made, progress=bar):
                yield made
        finally:
            made.close()


@dataclass(frozen=True)
class TextOptions:
    """How texts are read and encoded."""

    device: ModelDeviceOption = None
    batch_tokens: Annotated[
        int | None,
        Option(help="Tokens per batch, including padding [4096; 65536 on a GPU].", min=1),
    ] = None
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens [the model's limit].", min=1)
    ] = None
    text_column: Annotated[
        list[str] | None,
        Option(
            help="Column with the texts, if it is not text, sentence, question, or both sentence1 "
            "and sentence2; repeatable.",
            show_default=False,
        ),
    ] = None

    @property
    def encoding(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("device", "batch_tokens", "max_length")}

    def open(self, texts: str) -> Texts:
        """The texts in a file; tells how many were blank, and where the first of them are."""
        found = open_texts(texts, self.text_column or None)
        say_left_out(found.n_blank, "blank text", found.blank_lines)
        return found


def origin_of(source: Source, given: list[str] | None) -> dict[str, Any]:
    """The fields of the origin that the source has, and of those that were given."""
    found = dict(source.origin())
    for option in given or ():
        name, text = specs.split(option, "--origin")
        parsed = specs.value(text)
        found[name] = parsed if type(parsed) in KINDS.get(name, ()) else text
    return found


def warn_of_origin(caller: str, declared: dict[str, Any], fitted: Repair | Codec) -> None:
    """Warn if vectors of this origin differ from those that something was fitted on."""
    differs = origin_warning(Origin.from_dict(declared), fitted.origin_)
    if differs is not None:
        warn(f"{caller}: {differs}")


def typed(context: typer.Context) -> str:
    """The command line as it was typed, without passwords."""
    return shlex.join(["isotropy", *map(without_secrets, context.find_root().obj or [])])


def destination(path: Path | None) -> Path | None:
    """Where an output goes: - is the standard output."""
    return Path("/dev/stdout") if path == Path("-") else path


@contextlib.contextmanager
def beside(out: Path | None) -> Iterator[None]:
    """Print to standard error if the file goes to the standard output."""
    if out != Path("/dev/stdout"):
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def say(text: str) -> None:
    """A line for a person at the terminal; nothing if the output is piped."""
    if sys.stdout.isatty():
        typer.echo(text)


def say_left_out(n_left_out: int, what: str = "bad row", lines: Sequence[int] = ()) -> None:
    """How many rows or texts were left out, if any, and the first lines, wherever output goes."""
    if not n_left_out:
        return
    many = "s" if n_left_out > 1 else ""
    named = [*map(str, lines), *["..."] * (n_left_out > len(lines))]
    where = f" (line{many} {', '.join(named)})" if lines else ""
    typer.echo(f"{n_left_out:,} {what}{many} left out{where}", err=True)


def one_layer(layer: str | None) -> int | str:
    if layer is None or layer == "first-last":
        return layer or -1
    try:
        return int(layer)
    except ValueError as error:
        raise InputError(f"--layer must be a number or first-last, got {layer!r}.") from error

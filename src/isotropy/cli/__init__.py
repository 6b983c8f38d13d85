"""The command line: one short file per command, imported when the command is called."""

import contextlib
import errno
import functools
import importlib
import itertools
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from isotropy._version import __version__
from isotropy.errors import DROP_ROWS, ENCODE_AGAIN, InputError, IsotropyError, one_line
from isotropy.tables import json_line

TOUR = {  # heading in the help: its commands, each with the first line of its help
    "Start here": {
        "demo": "Measure, repair and test two real embedding spaces.",
        "doctor": "Check the installation: packages, extras, device and BLAS.",
    },
    "Measure and see": {
        "measure": "Measure how isotropic the vectors in SOURCE are.",
        "report": "Write an HTML page with charts of the vectors in SOURCE.",
        "layers": "Measure how isotropic each layer of MODEL is on TEXTS.",
        "embed": "Encode TEXTS with MODEL and write the vectors to a file.",
    },
    "Repair": {
        "repair": "Fit a repair to SOURCE, save it, and write the repaired vectors.",
        "apply": "Apply a saved repair or codec to the vectors in SOURCE.",
        "show": "Describe a saved repair or codec: what it is, what it was fitted on, how to apply "
        "it.",
        "export": "Write a saved repair, or a codec, into the tool that makes or keeps your "
        "vectors.",
        "watch": "Tell whether new vectors have drifted from those a repair was fitted on.",
    },
    "Evidence": {
        "compare": "Score every repair on a task, with intervals and p-values.",
        "advise": "Recommend a repair for a task, or advise leaving the space alone.",
        "compress": "Find the smallest code of vectors that loses little on a task.",
        "calibrate": "Find which cosine counts as high: the threshold for a false-match rate.",
    },
    "Train": {
        "train": "Fine-tune models with and without calibration, and test whether it helped."
    },
    "Papers": {
        "reproduce": "Run an experiment of a paper on any model, beside the published figures."
    },
}
SHARED = {"apply": "repair", "show": "repair", "compare": "evidence", "advise": "evidence"}
MODULES = {name: SHARED.get(name, name) for part in TOUR.values() for name in part}
SYNONYMS = {"random_state": "seed", "candidates": "repairs"}  # parameter: that of the command
STOPS = ("SIGTERM", "SIGHUP")
ALONE = r"(?<![\w./'\":?&-])"  # what a parameter must not follow: it is part of something else


@functools.cache
def loaded(name: str) -> Any:
    """The command of that name, whose module is imported now."""
    function = getattr(importlib.import_module(f"isotropy.cli.{MODULES[name]}"), name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, epilog=function.epilog)(function)
    return typer.main.get_command(alone)


class CommandsByName(Mapping[str, Any]):
    """The commands; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        return loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class Commands(TyperGroup):
    """Lists commands under their headings, and reports an error in one line with exit code 2.

    With --json that line is a JSON object, {"error": ...}, also on standard error: standard output
    then holds one complete JSON object or nothing.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = CommandsByName()  # type: ignore[assignment]

    def main(self, args: Any = None, standalone_mode: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        given = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", given)
        warnings.showwarning = lambda message, *_, **__: _tell("warning", message, as_json)
        try:
            with ending_in_order():
                code = super().main(args, standalone_mode=False, obj=given, **kwargs)
        except KeyboardInterrupt:
            sys.exit(130)
        except IsotropyError as error:
            name = next((word for word in given if word in MODULES), None)
            _tell("error", with_options(str(error), {} if name is None else flags(name)), as_json)
            sys.exit(2)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not a wrong use of the command line
                raise
            _tell("error", error.format_message().replace("Value error, ", ""), as_json)
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, commands in TOUR.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:9}", text) for name, text in commands.items()])


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Lets what was begun be removed when the command is stopped, and says where output failed.

    A signal to stop ends the command as an exception does, with exit code 128 + its number. A
    reader of the output that has gone, such as `head`, ends it silently with exit code 1.
    """
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in STOPS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                old[number] = signal.signal(number, _stop)
    try:
        yield
        if sys.stdout is not None:  # which is closed
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except MemoryError as error:
        raise InputError(
            f"there is too little memory ({one_line(error, 160) or 'none is left'}). Free some, or "
            "use fewer threads (OMP_NUM_THREADS) or smaller chunks (--chunk-rows)."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_output()
        raise InputError(
            "the output could not be written: the disk is full. Free some room, or write elsewhere."
        ) from error
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _stop(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    sys.exit(128 + number)


def _drop_output() -> None:
    """What is still to be flushed goes nowhere, or the end of the process would complain of it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def flags(name: str) -> dict[str, str]:
    """The options of a command by the names that its Python parameters have."""
    found = {one.name: one.opts[0] for one in loaded(name).params if one.opts[0].startswith("--")}
    return found | {name: found[own] for name, own in SYNONYMS.items() if own in found}


def with_options(message: str, flags: Mapping[str, str]) -> str:
    """The message with options of the command line for the parameters of Python.

    A name that is also a common word is replaced only where it must be the parameter.

    Examples
    --------
    >>> flags = {"column": "--column", "skip_bad_rows": "--skip-bad-rows"}
    >>> with_options("x.csv has a bad row. Leave it out with skip_bad_rows.", flags)
    'x.csv has a bad row. Leave it out with --skip-bad-rows.'
    >>> with_options("open: column must be text, got a column of 3. Choose with column.", flags)
    'open: --column must be text, got a column of 3. Choose with --column.'
    """
    if "skip_bad_rows" not in flags:
        message = message.replace(DROP_ROWS, ENCODE_AGAIN)
    for name, flag in flags.items():
        message = re.sub(rf"{ALONE}{name}=True\b", flag, message)
        message = re.sub(rf"{ALONE}{name}=(?=\w)", f"{flag} ", message)
        if "_" in name:
            found = rf"{ALONE}(){name}(?:, {flag})?(?![\w/'\"=-]|\.\w)"
        else:
            found = rf"(^|^[\w.]+: |\bwith ){name}(?= must\b|[.,;]|$)"
        message = re.sub(found, rf"\1{flag}", message)
    return message


def _tell(kind: str, message: object, as_json: bool) -> None:
    """One line on standard error, whatever is in the message; with --json an object."""
    line = one_line(message)
    if as_json:
        line = json_line({kind: line})
    elif kind == "warning":
        line = f"warning: {line}"
    typer.echo(line, err=True)


app = typer.Typer(
    name="isotropy",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(epilog="isotropy COMMAND --help explains a command and ends with examples to copy.")
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Measure how isotropic an embedding space is, repair it, and test if that helps.

    \b
    A first tour:
      1. isotropy demo                   two real spaces, measured and repaired
      2. isotropy measure vectors.npy    numbers and a verdict on your vectors
         isotropy report vectors.npy     the same on a page with charts
      3. isotropy advise vectors.parquet --task sts --data pairs.tsv
         whether a repair helps on your task, and which one
      4. isotropy repair vectors.npy --method whiten --save repair.safetensors
         isotropy apply repair.safetensors new.npy --out fixed.npy
    """

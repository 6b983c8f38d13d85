"""The command line: one short file per command."""

import itertools
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from isotropy._version import __version__
from isotropy.cli import (
    calibrate,
    demo,
    doctor,
    embed,
    evidence,
    layers,
    measure,
    repair,
    report,
    show,
    train,
)
from isotropy.cli.common import json_line
from isotropy.cli.ending import in_order
from isotropy.errors import IsotropyError, one_line, public

TOUR: dict[str, tuple[Any, ...]] = {  # heading in the help: its commands
    "Start here": (demo.demo, doctor.doctor),
    "Measure and see": (measure.measure, report.report, layers.layers, embed.embed),
    "Repair": (repair.repair, repair.apply, show.show),
    "Evidence": (evidence.compare, evidence.advise, calibrate.calibrate),
    "Train": (train.train,),
}


class Commands(TyperGroup):
    """Lists commands under their headings, and says what went wrong in one line and exit code 2.

    With --json that line is a JSON object, {"error": ...}, on standard error as well: standard
    output then holds one whole JSON object or nothing.
    """

    def main(self, args: Any = None, standalone_mode: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        given = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", given)
        warnings.showwarning = lambda message, *_, **__: _tell("warning", message, as_json)
        try:
            with in_order():
                code = super().main(args, standalone_mode=False, **kwargs)
        except KeyboardInterrupt:
            sys.exit(130)
        except IsotropyError as error:
            _tell("error", error, as_json)
            sys.exit(2)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not a wrong use of the command line
                raise
            _tell("error", error.format_message(), as_json)
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, commands in TOUR.items():
            names = [command.__name__ for command in commands]
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{name:9}", self.commands[name].get_short_help_str(200)) for name in names]
                )


def _tell(kind: str, message: object, as_json: bool) -> None:
    """One line on standard error, whatever stands in the message; with --json an object."""
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


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(epilog="isotropy COMMAND --help explains a command, and ends with examples to copy.")
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Measure how evenly an embedding space is used, and repair it where it is not.

    \b
    A first tour:
      1. isotropy demo                   two real spaces, measured and repaired
      2. isotropy measure vectors.npy    numbers and a verdict on a file of yours
         isotropy report vectors.npy     the same on a page with charts
      3. isotropy advise vectors.parquet --task sts --data pairs.tsv
         does a repair help on your task, and which one? Or: leave it alone
      4. isotropy repair vectors.npy --method whiten --save repair.safetensors
         isotropy apply repair.safetensors new.npy --out fixed.npy
    """


for commands in TOUR.values():
    for command in commands:
        app.command(epilog=getattr(command, "epilog", None))(public(command))

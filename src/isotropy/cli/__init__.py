"""The command line: one short file per command."""

import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from isotropy._version import __version__
from isotropy.cli import demo, embed, evidence, layers, measure, repair
from isotropy.errors import IsotropyError


class Commands(TyperGroup):
    """Says what went wrong in one line on standard error, and exits with 2."""

    def main(self, args: Any = None, standalone_mode: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        warnings.showwarning = _show_warning
        try:
            code = super().main(args, standalone_mode=False, **kwargs)
        except IsotropyError as error:
            typer.echo(str(error), err=True)
            sys.exit(2)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not a wrong use of the command line
                raise
            typer.echo(error.format_message(), err=True)
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {message}", err=True)


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


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Measure how evenly an embedding space is used, and repair it where it is not.

    Start with `isotropy demo`, then `isotropy measure` on a file of your own; where the verdict
    asks for it, `isotropy repair` fits a repair and `isotropy apply` treats new files with it.
    Whether a repair helps is a question for a task: `isotropy compare` scores every one of them,
    `isotropy advise` chooses, or says to leave the space alone.
    """


for command in (
    demo.demo,
    measure.measure,
    repair.repair,
    repair.apply,
    evidence.compare,
    evidence.advise,
    evidence.calibrate,
    embed.embed,
    layers.layers,
):
    app.command()(command)

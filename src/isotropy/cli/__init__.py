"""The command line: one short file per command."""

from typing import Any

import typer
from typer.core import TyperGroup

from isotropy.cli import demo, measure, repair
from isotropy.errors import IsotropyError


class Commands(TyperGroup):
    """Prints what went wrong as one line, without a traceback, and exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except IsotropyError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="isotropy",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def main() -> None:
    """Measure how evenly an embedding space is used, and repair it where it is not."""


for command in (measure.measure, repair.repair, repair.apply, demo.demo):
    app.command()(command)

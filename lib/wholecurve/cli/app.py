"""The application that commands register with, and the console that they print to."""

import sys
from typing import Annotated

import typer

from wholecurve import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The whole performance curve of an LLM inference engine, and what every multiplier on it is worth.",
)


def console():
    """Where tables go; as wide as the terminal, and wide enough for every table when piped."""
    from rich.console import Console

    # Piped output must not be folded at 80 columns: tables would lose their rows.
    return Console() if sys.stdout.isatty() else Console(width=240)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wholecurve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass

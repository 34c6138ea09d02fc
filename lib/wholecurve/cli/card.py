"""The methodology card of a run: card."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wholecurve.cli.app import app
from wholecurve.errors import UserError


class Format(StrEnum):
    """The forms that a card can be written in."""

    MD = "md"
    HTML = "html"


@app.command()
def card(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    form: Annotated[
        Format | None, typer.Option("--format", help="md, or html: one file, light and dark, prints on one page.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write (.md or .html); printed when not given.")] = None,
) -> None:
    """One page on what a run compared, how, what checks found, and what it does not show."""
    from wholecurve.card import make_card
    from wholecurve.card.html import to_html
    from wholecurve.card.markdown import to_markdown
    from wholecurve.files import write_text
    from wholecurve.runs import RunFolder

    chosen = _form(form, out)
    text = {Format.MD: to_markdown, Format.HTML: to_html}[chosen](make_card(RunFolder.open(run)))
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_text(out, text)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    typer.echo(str(out))


def _form(form: Format | None, out: Path | None) -> Format:
    """The form that was asked for; without one, what the file's name says, else Markdown."""
    if form is not None or out is None:
        return form or Format.MD
    suffix = out.suffix.lower().removeprefix(".")
    named = {"md": Format.MD, "markdown": Format.MD, "html": Format.HTML, "htm": Format.HTML}.get(suffix)
    if named is None:
        raise UserError(f"{out}: its name does not say what to write; give --format md or html")
    return named

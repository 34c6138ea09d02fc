"""The card as Markdown, as it reads on GitHub and in a terminal alike."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from wholecurve.card.card import Card, Table
from wholecurve.card.checks import FLAG


def to_markdown(card: Card) -> str:
    """The whole card; what stands in the run is text in it, whatever characters it has."""
    parts = [
        f"# {_text(card.title)}",
        _text(card.question),
        f"**{_text(card.verdict)}**",
        "## What was compared",
        _table(card.contenders),
        "## Conditions",
        "\n".join(f"- **{_text(what)}**: {_text(text)}" for what, text in card.conditions),
        "## Protocol",
        "\n".join(f"{i}. {_text(one)}" for i, one in enumerate(card.protocol, start=1)),
        "## What the checks found",
        _table(card.checks_table(), {FLAG: "**FLAG**"}),
    ]
    if card.multipliers.rows:
        parts += ["## Multipliers", _table(card.multipliers)]
    if card.leads.rows:
        parts += ["### Against whichever other contender is the best at a load (a composite)", _table(card.leads)]
    parts += ["\n".join(f"- {_text(one)}" for one in card.notes)] if card.notes else []
    parts += ["## What this does not show", "\n".join(f"- {_text(one)}" for one in card.limits)]
    return "\n\n".join([*parts, f"*{_text(card.source)}*"]) + "\n"


def _table(table: Table, marked: Mapping[str, str] = MappingProxyType({})) -> str:
    """The table; cells that are one of `marked` are written as it says."""
    if not table.rows:
        return "nothing"
    rows = [tuple(marked.get(cell) or _text(cell) or " " for cell in row) for row in table.rows]
    lines = [table.columns, tuple("---" for _ in table.columns), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _text(text: str) -> str:
    """A text in which nothing is markup: no table cell ends early, no link, image, HTML, emphasis or formula begins."""
    text = (
        " ".join(str(text).split())
        .replace("\\", "\\\\")
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    text = re.sub(r"([`*|$~])", r"\\\1", text)
    # An underscore inside a word is one; at its edge it would be emphasis.
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return text.replace("](", "]\\(").replace("][", "]\\[").replace("![", "!\\[")

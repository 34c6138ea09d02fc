"""The card as one HTML file that needs nothing else: it follows light and dark, and prints on one page."""

import math
from collections.abc import Iterable
from html import escape

from wholecurve.card.card import Card, Table
from wholecurve.card.checks import FLAG, NOT_CHECKED, PASS, Check
from wholecurve.card.html_style import STYLE

# Found by printing: characters × points² that fill an A4 page in this layout, and what a table's row leaves empty.
_PAGE, _ROW_CHARACTERS = 395_000, 40
_SMALLEST, _LARGEST = 4.0, 8.0
_CLASS = {PASS: "pass", FLAG: "flag", NOT_CHECKED: "open"}


def to_html(card: Card) -> str:
    """The whole card; what stands in the run is text in it, whatever characters it has."""
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Nothing is fetched and nothing runs, whatever a run's texts say.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="color-scheme" content="light dark">',
        _element("title", card.title),
        f"<style>{STYLE}:root {{ --print-size: {print_points(card):.1f}pt; }}\n</style>",
        "</head>",
        "<body>",
        "<main>",
        "<header>",
        _element("h1", card.title),
        _element("p", card.question, "question"),
        _element("p", card.verdict, "verdict"),
        "</header>",
        _section("What was compared", [_table(card.contenders, "contenders")], "wide"),
        _section("Conditions", [_definitions(card.conditions)], "half"),
        _section("Protocol", [_list("ol", card.protocol)], "half"),
        _section("What the checks found", [_checks(card.checks)], "wide"),
        _section("Multipliers", _multipliers(card), "wide"),
        _section("What this does not show", [_list("ul", card.limits)], "wide limits"),
        "<footer>",
        _element("p", card.source),
        "</footer>",
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def print_points(card: Card) -> float:
    """Size of type, in points, at which the whole card fits on one A4 page; smaller, the more it has to say.

    A page takes so many characters as its area over that of one; each row of a table costs some more for its rest.
    """
    tables = (card.contenders, card.multipliers, card.leads)
    cells = sum(len(cell) for table in tables for row in (table.columns, *table.rows) for cell in row)
    texts = [card.title, card.question, card.verdict, card.source, *card.protocol, *card.notes, *card.limits]
    texts += [text for line in card.conditions for text in line]
    texts += [text for check in card.checks for text in (check.name, check.status, check.found, check.rule)]
    size = cells + sum(map(len, texts)) + _ROW_CHARACTERS * sum(len(table.rows) + 1 for table in tables)
    return min(max(math.floor(10 * math.sqrt(_PAGE / size)) / 10, _SMALLEST), _LARGEST)


def _element(tag: str, text: str, kind: str | None = None) -> str:
    opened = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
    return f"{opened}{escape(str(text))}</{tag}>"


def _section(title: str, parts: Iterable[str], kind: str) -> str:
    inside = "\n".join(part for part in parts if part)
    return f'<section class="{kind}">\n{_element("h2", title)}\n{inside}\n</section>' if inside else ""


def _table(table: Table, kind: str) -> str:
    if not table.rows:
        return ""
    head = "".join(_element("th", column) for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(_element('td', cell) for cell in row)}</tr>" for row in table.rows)
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="scroll"><table class="{kind}">\n{body}\n</table></div>'


def _definitions(lines: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(_element("dt", what) + _element("dd", text) for what, text in lines) + "\n</dl>"


def _list(tag: str, sentences: Iterable[str]) -> str:
    items = "\n".join(_element("li", one) for one in sentences)
    return f"<{tag}>\n{items}\n</{tag}>" if items else ""


def _checks(checks: Iterable[Check]) -> str:
    """Each check as a block of its own, so that two columns of them fit side by side."""
    blocks = [
        f'<div class="check {_CLASS[check.status]}">{_element("b", check.status)} {_element("h3", check.name)} '
        f"{_element('span', check.found, 'found')} {_element('span', check.rule, 'rule')}</div>"
        for check in checks
    ]
    return '<div class="checks">\n' + "\n".join(blocks) + "\n</div>"


def _multipliers(card: Card) -> list[str]:
    leads = _table(card.leads, "numbers")
    title = _element("h3", "Against whichever other contender is the best at a load (a composite)") if leads else ""
    return [_table(card.multipliers, "numbers"), title, leads, _list("ul", card.notes)]

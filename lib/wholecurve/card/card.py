"""The card of a run, as sections of plain text and tables that any form of it is written from."""

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from wholecurve.card import contenders, headline, leads
from wholecurve.card.checks import FLAG, NOT_CHECKED, PASS, Check, run_checks
from wholecurve.card.conditions import condition_lines
from wholecurve.card.facts import RunFacts, read_facts
from wholecurve.card.limits import limit_sentences
from wholecurve.card.protocol import protocol_sentences
from wholecurve.card.wording import names
from wholecurve.runs import RunFolder


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; every row has as many cells as there are columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def to_frame(self) -> pd.DataFrame:
        """The same as a frame of text, for notebooks."""
        return pd.DataFrame(self.rows, columns=list(self.columns))


@dataclass(frozen=True)
class Card:
    """One page. ``verdict`` counts the checks, ``notes`` say how the multipliers are read and what was refused.

    ``checks`` are flags first, then what was not checked, then what passed, each in the order of the methodology.
    """

    title: str
    question: str
    verdict: str
    contenders: Table
    conditions: list[tuple[str, str]]
    protocol: list[str]
    checks: list[Check]
    multipliers: Table
    leads: Table
    notes: list[str]
    limits: list[str]
    source: str

    def checks_table(self, *statuses: str) -> Table:
        """The checks with these statuses, all of them without any; each with its rule."""
        rows = [(c.name, c.status, c.found, c.rule) for c in self.checks if not statuses or c.status in statuses]
        return Table(("check", "result", "found", "what must hold"), rows)


def make_card(run: RunFolder) -> Card:
    """Read a run and check it; UserError where the folder holds something that is no record of a run."""
    return card_of(read_facts(run))


def card_of(facts: RunFacts) -> Card:
    """The card of facts that were read before."""
    checks = run_checks(facts)
    started = facts.provenance.get("started", "at an unknown time")
    return Card(
        title=f"Methodology card: {facts.name}",
        question=_question(facts),
        verdict=verdict(checks),
        contenders=Table(contenders.COLUMNS, contenders.contender_rows(facts)),
        conditions=condition_lines(facts),
        protocol=protocol_sentences(facts.document),
        checks=sorted(checks, key=lambda check: (FLAG, NOT_CHECKED, PASS).index(check.status)),
        multipliers=Table(headline.COLUMNS, headline.multiplier_rows(facts)),
        leads=Table(leads.COLUMNS, leads.lead_rows(facts)),
        notes=_notes(facts),
        limits=limit_sentences(facts),
        source=f"wholecurve run {facts.name}, begun {started}; plan {facts.document['plan_hash'][:12]}; "
        "every number is computed from the run's files",
    )


def verdict(checks: list[Check]) -> str:
    """ "31 checks: 24 pass, 4 flagged (…), 3 not checked (…)"."""
    counts = Counter(check.status for check in checks)
    listed = {status: names((c.name for c in checks if c.status == status), 8) for status in (FLAG, NOT_CHECKED)}
    parts = [f"{counts[PASS]} pass"]
    for status, words in ((FLAG, "flagged"), (NOT_CHECKED, "not checked")):
        if counts[status]:
            parts.append(f"{counts[status]} {words} ({listed[status]})")
    return f"{len(checks)} checks: {', '.join(parts)}."


def _question(facts: RunFacts) -> str:
    if not facts.peers:
        return f"How does {facts.first} run on this machine?"
    return f"How does {facts.first} compare with {names(facts.peers, 6)}?"


def _notes(facts: RunFacts) -> list[str]:
    if not facts.rows:
        return ["No point is finished yet, so there is no multiplier."]
    found = [
        f"{workload}: no multipliers, because {why}."
        for workload, why in facts.comparisons.items()
        if isinstance(why, str)
    ]
    if facts.peers:
        found.append(
            f"Above 1: {facts.first} is ahead. Loads are those of the other contender; [low, high] is the 95 % "
            "interval over repeats, of matched readings by bootstrap; an open end lies beyond what was measured."
        )
        found.append(
            "A capacity gain g − 1 and a cost cut 1 − 1/g are two words for one multiplier: 2× is 100 % more capacity "
            "and 50 % lower cost."
        )
    found += headline.maximum_loads(facts)
    if (text := headline.refused_text(facts)) is not None:
        found.append(text)
    return found

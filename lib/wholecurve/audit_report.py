"""An audit as text for the terminal: every claim with its verdict, and under it what each check found."""

from rich.console import Console
from rich.markup import escape

from wholecurve.curves.claims import Audit, AuditedClaim, Finding, Sentence
from wholecurve.curves.claims.verdicts import (
    CANNOT,
    CAUTION,
    CLEAR,
    CONFIRMED,
    CONSISTENT,
    CONTRADICTED,
    DISCLOSED,
    MEANINGS,
)

COLOURS = {
    CONFIRMED: "green",
    CONSISTENT: "cyan",
    CANNOT: "yellow",
    CONTRADICTED: "red",
    CLEAR: "dim",
    DISCLOSED: "blue",
    CAUTION: "yellow",
}


def print_audit(console: Console, audit: Audit) -> None:
    """Claims by document in the order of the file, then how many have which verdict and what the words mean."""
    document, told = None, {}
    for audited in audit.claims:
        if audited.claim.document != document:
            document = audited.claim.document
            _print_document(console, audit, document)
        _print_claim(console, audited, told)
    console.print()
    for verdict, count in audit.counts.items():
        console.print(f"{count:4d}  {_word(verdict)}: {escape(MEANINGS[verdict])}")
    for word in (CLEAR, DISCLOSED, CAUTION):
        console.print(f"      {_word(word)}: {escape(MEANINGS[word])}")
    console.print(
        "A claim has the worst verdict of the checks that can decide it. What is clear, disclosed or a caution stands "
        "beside a verdict and never changes it. \\[a, b] is what the printed digits allow."
    )


def _print_document(console: Console, audit: Audit, document: str) -> None:
    source = audit.published.documents[document]
    known = (document, source.publisher, source.author, source.kind, source.date)
    about = ", ".join(text for text in known if text)
    console.print(f"\n[bold]{escape(source.title or document)}[/] ({escape(about)})")


def _print_claim(console: Console, audited: AuditedClaim, told: dict[Finding, str]) -> None:
    """`told`: findings printed before, with the claim under which they stand; they are not printed twice."""
    claim = audited.claim
    console.print(f"\n  {_word(audited.verdict)}  “{escape(claim.text)}”  [dim]{escape(claim.id)}, {_place(claim)}[/]")
    for finding in audited.findings:
        if told.setdefault(finding, claim.id) == claim.id:
            _print_finding(console, finding, claim.document)
        else:
            console.print(f"    {_word(finding.verdict)}  {escape(finding.name)}: as under {escape(told[finding])}")


def _print_finding(console: Console, finding: Finding, document: str) -> None:
    console.print(f"    {_word(finding.verdict)}  {escape(finding.name)}: {escape(finding.finding)}")
    if finding.arithmetic:
        console.print(f"        {escape(finding.arithmetic)}")
    if finding.quote:
        console.print(f"        [dim]“{escape(finding.quote.quote)}” ({_source(finding.quote, document)})[/]")


def _source(sentence: Sentence, document: str) -> str:
    other = f"{escape(sentence.document)}, " if sentence.document != document else ""
    return f"{other}line {sentence.line}"


def _place(claim) -> str:
    return f"line {claim.line}" if claim.line == claim.last_line else f"lines {claim.line}–{claim.last_line}"


def _word(verdict: str) -> str:
    return f"[{COLOURS[verdict]}]{verdict}[/]"

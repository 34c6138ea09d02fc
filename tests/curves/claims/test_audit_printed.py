"""The audit as text: nothing is lost, nothing is read as markup, and a finding is told once."""

import io
import subprocess
import sys

from claim_builders import PUBLISHED, number
from rich.console import Console

from wholecurve.audit_report import print_audit
from wholecurve.curves.claims import audit
from wholecurve.curves.claims.audit import Audit, AuditedClaim
from wholecurve.curves.claims.checks.conditions import runs
from wholecurve.curves.claims.checks.scope import remark
from wholecurve.curves.claims.nouns import Check, Claim, Document, Published, Sentence
from wholecurve.readers.published import read_claims


def printed(found):
    out = io.StringIO()
    print_audit(Console(file=out, width=100_000, color_system=None), found)
    return out.getvalue()


def test_the_whole_audit_is_printed():
    found = audit(read_claims(PUBLISHED))
    text = printed(found)
    for audited in found.claims:
        assert f"{audited.verdict}  “{audited.claim.text}”  {audited.claim.id}" in text
        for finding in audited.findings:
            assert finding.finding in text
            assert finding.arithmetic is None or finding.arithmetic in text
            assert finding.quote is None or f"“{finding.quote.quote}”" in text
    for document in found.published.documents.values():
        assert (document.title or document.id) in text
    assert "  40  confirmed: it follows from the other printed numbers" in text
    assert "(backboard-vllm, line 34)" in text


def test_a_finding_that_two_claims_share_is_told_once():
    text = printed(audit(read_claims(PUBLISHED)))
    assert text.count("1.07 / 1.16 = 0.92") == 3
    assert "baseline handicap: as under deepinfer-headline" in text


def test_brackets_of_a_text_are_no_markup():
    claim = Claim("c[1]", "d", 3, 4, "[red]twice[/red] as fast", ())
    finding = remark(finding="[bold]said[/bold]", says=Sentence("d", 3, "[/]"), numbers=(number("2×"),))
    published = Published({"d": Document("d", title="[T]", publisher="[P]")}, {}, (claim,))
    text = printed(Audit(published, (AuditedClaim(claim, (audit_one(published, claim), finding)),)))
    assert "“[red]twice[/red] as fast”  c[1], lines 3–4" in text
    assert "[bold]said[/bold]" in text and "“[/]” (line 3)" in text and "[T] (d, [P])" in text


def audit_one(published, claim):
    """One deciding finding, by way of the audit, so that it has its name."""
    from dataclasses import replace

    from wholecurve.curves.claims.checks.arithmetic import not_published

    check = Check("not published", not_published, {"missing": "[all]"})
    return audit(replace(published, claims=(replace(claim, checks=(check,)),))).claims[0].findings[0]


def test_findings_take_the_name_under_which_they_were_asked_for():
    claim = Claim("c", "d", 1, 1, "twice", (Check("runs", runs, {"numbers": (number("2×"),)}),))
    found = audit(Published({"d": Document("d")}, {}, (claim,)))
    assert found.claims[0].findings[0].name == "runs"


def test_reading_and_auditing_load_no_plotting_and_no_yaml_before_they_must():
    code = (
        "import sys, wholecurve.readers.published, wholecurve.audit_report\n"
        "slow = {'yaml', 'matplotlib', 'scipy.interpolate', 'scipy.stats', 'scipy.optimize', 'pydantic', 'torch'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

"""Run every check that the claims ask for, and say what becomes of each claim."""

import inspect
from collections import Counter
from dataclasses import dataclass, replace

from wholecurve.curves.claims import verdicts
from wholecurve.curves.claims.checks import DECIDING
from wholecurve.curves.claims.nouns import Check, Claim, Finding, Published
from wholecurve.errors import UserError


@dataclass(frozen=True)
class AuditedClaim:
    """A claim with the findings of its checks, in the order of the file."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def deciding(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.name in DECIDING]

    @property
    def verdict(self) -> str:
        """The worst verdict of its deciding checks (see `verdicts.worst`)."""
        return verdicts.worst(finding.verdict for finding in self.deciding)

    @property
    def arithmetic(self) -> str | None:
        """The arithmetic of the finding that decided."""
        lines = [f.arithmetic for f in self.deciding if f.verdict == self.verdict and f.arithmetic]
        return lines[0] if lines else None


@dataclass(frozen=True)
class Audit:
    """All claims of a file, audited."""

    published: Published
    claims: tuple[AuditedClaim, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each of the four verdicts; a verdict that none has counts 0."""
        found = Counter(audited.verdict for audited in self.claims)
        return {verdict: found[verdict] for verdict in verdicts.DECIDING}

    def to_document(self) -> dict:
        """What `wholecurve audit --json` prints: claims with their checks, counts by verdict, and what the
        verdicts mean."""
        return {
            "claims": [_claim_document(audited) for audited in self.claims],
            "counts": self.counts,
            "meanings": verdicts.MEANINGS,
        }


def audit(published: Published) -> Audit:
    """Every claim of `published` with what its checks find.

    Raises UserError, naming claim and check, when a check cannot be carried out on the numbers it was given.
    """
    return Audit(published, tuple(_audited(claim, published) for claim in published.claims))


def _audited(claim: Claim, published: Published) -> AuditedClaim:
    return AuditedClaim(claim, tuple(_finding(claim, check, published) for check in claim.checks))


def _finding(claim: Claim, check: Check, published: Published) -> Finding:
    injected = {"claim": claim, "published": published}
    wanted = inspect.signature(check.function).parameters
    try:
        found = check.function(**{k: v for k, v in injected.items() if k in wanted}, **check.arguments)
    except UserError as error:
        raise UserError(f"claim {claim.id!r}, check {check.name!r}: {error}") from None
    return replace(found, name=check.name)


def _claim_document(audited: AuditedClaim) -> dict:
    claim = audited.claim
    return {
        "id": claim.id,
        "text": claim.text,
        "source": {"document": claim.document, "line": claim.line, "last_line": claim.last_line},
        "verdict": audited.verdict,
        "arithmetic": audited.arithmetic,
        "checks": [finding.to_document() for finding in audited.findings],
    }

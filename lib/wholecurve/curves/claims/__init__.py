"""Published claims: what their printed digits allow, and what becomes of each when it is recomputed."""

from wholecurve.curves.claims.audit import Audit, AuditedClaim, audit
from wholecurve.curves.claims.frames import baseline_handicap, framing_table, published_ratios
from wholecurve.curves.claims.nouns import Claim, Document, Finding, Number, Published, Sentence

__all__ = [
    "Audit",
    "AuditedClaim",
    "Claim",
    "Document",
    "Finding",
    "Number",
    "Published",
    "Sentence",
    "audit",
    "baseline_handicap",
    "framing_table",
    "published_ratios",
]

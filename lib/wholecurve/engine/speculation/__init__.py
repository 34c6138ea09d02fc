"""Speculation: who guesses the next tokens, and which guesses stay."""

from wholecurve.engine.speculation.draft_model import DraftModelProposer
from wholecurve.engine.speculation.ngram import NgramProposer
from wholecurve.engine.speculation.proposer import Judge, Proposer
from wholecurve.engine.speculation.rates import expected_tokens
from wholecurve.engine.speculation.synthetic import SyntheticProposer

__all__ = [
    "DraftModelProposer",
    "Judge",
    "NgramProposer",
    "Proposer",
    "SyntheticProposer",
    "expected_tokens",
    "parse_speculation",
]


def __getattr__(name: str):
    """`parse_speculation` when it is asked for: it can load checkpoints, and so needs what a bare GPU machine lacks."""
    if name != "parse_speculation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wholecurve.engine.speculation.spec import parse_speculation

    return parse_speculation

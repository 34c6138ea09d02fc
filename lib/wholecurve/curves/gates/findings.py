"""A named warning: which check found something, and the sentence a reader needs before believing the number."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """``gate`` names the check, as "occupancy"; ``text`` says what was found, where, and what follows from it."""

    gate: str
    text: str

    def __str__(self) -> str:
        return f"{self.gate}: {self.text}"


def values_text(values: Iterable) -> str:
    """Sorted values in a sentence: "1, 8, 16", or "none"."""
    return ", ".join(str(v) if isinstance(v, str) else f"{v:g}" for v in sorted(values)) or "none"

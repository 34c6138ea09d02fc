"""Numbers and claims for tests, with only the fields that a test speaks of."""

from dataclasses import replace
from pathlib import Path

import pytest

from wholecurve.curves.claims.nouns import Number
from wholecurve.curves.claims.printed import parse

PUBLISHED = Path(__file__).parents[3] / "data" / "published"
TEXTS = Path(__file__).parents[3].parent / "shared" / "seeds"

needs_texts = pytest.mark.skipif(not TEXTS.is_dir(), reason="the four texts are not on this machine")


def number(printed, unit="×", **fields):
    """A printed number; its id is its text unless given."""
    fields = {"id": printed, "document": "text", "line": 1, "quote": printed} | fields
    return Number(printed=parse(printed), unit=unit, **fields)


def numbers(*printed, unit="×", **fields):
    return tuple(number(text, unit, **fields) for text in printed)


def at_loads(texts, loads, kind="step_tokens", **fields):
    """A series: one multiplier at each load."""
    return tuple(number(text, operating_point=f"{kind}={load}", **fields) for text, load in zip(texts, loads))


def nudged(original, units):
    """The number with `units` added to its last printed digit, printed as many decimals as before."""
    value = original.printed.value + units * original.printed.last_digit
    places = len(original.text.partition(".")[2].rstrip("×xs%"))
    return replace(original, printed=parse(f"{float(value):,.{places}f}{original.printed.suffix}"))

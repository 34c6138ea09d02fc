"""One row or object of a foreign file: numbers are asked for by name, and what is wrong with one is said by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wholecurve.errors import UserError

_ABSENT = object()


@dataclass(frozen=True)
class Record:
    """Fields of one row; ``where`` names file and row, as "results.jsonl, line 3"."""

    where: str
    fields: Mapping[str, object]

    def has(self, name: str) -> bool:
        """True when the field is there and not null."""
        return self.raw(name) not in (None, _ABSENT)

    def raw(self, name: str) -> object:
        """The value as it stands in the file; nested fields are reached as "metrics.median_tpot"."""
        if name in self.fields:
            return self.fields[name]
        head, _, rest = name.partition(".")
        inner = self.fields.get(head, _ABSENT)
        return Record(self.where, inner).raw(rest) if rest and isinstance(inner, Mapping) else _ABSENT

    def part(self, name: str) -> "Record":
        """A nested object as a record of its own; UserError when it is not there or not an object."""
        inner = self.raw(name)
        if not isinstance(inner, Mapping):
            raise self.refuse(name, "an object")
        return Record(f"{self.where}, {name}", inner)

    def number(self, name: str) -> float:
        """A finite number of any sign."""
        value = _as_number(self.raw(name))
        if value is None or not math.isfinite(value):
            raise self.refuse(name, "a finite number")
        return value

    def positive(self, name: str) -> float:
        """A finite number above 0."""
        value = _as_number(self.raw(name))
        if value is None or not (math.isfinite(value) and value > 0):
            raise self.refuse(name, "a finite number above 0")
        return value

    def count(self, name: str, least: int = 0) -> int:
        """A whole number, at least ``least``."""
        value = _as_number(self.raw(name))
        if value is None or not math.isfinite(value) or value != int(value) or value < least:
            raise self.refuse(name, f"a whole number from {least} up")
        return int(value)

    def optional_positive(self, name: str) -> float | None:
        """None when the field is absent or null; UserError when it is there and not a finite number above 0."""
        return self.positive(name) if self.has(name) else None

    def optional_count(self, name: str, least: int = 0) -> int | None:
        """None when the field is absent or null; UserError when it is there and not a whole number."""
        return self.count(name, least) if self.has(name) else None

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self.raw(name)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(name, "a text")
        return value.strip()

    def optional_text(self, name: str) -> str | None:
        """None when the field is absent, null or empty; UserError when it is no text."""
        return self.text(name) if self.has(name) and self.raw(name) != "" else None

    def state(self, name: str) -> str:
        """What the field holds, in words: missing, null, 0, negative, NaN, infinite, text, or the value itself."""
        return describe(self.raw(name))

    def refuse(self, name: str, needed: str) -> UserError:
        """The error to raise about a field: where, its name, its state, and what would be right."""
        return UserError(f"{self.where}: {name} is {self.state(name)}; {needed} is needed")


def describe(value: object) -> str:
    """A value of a file in words, so that zero, missing, null, NaN, infinite and negative are told apart."""
    if value is _ABSENT:
        return "missing"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    number = _as_number(value)
    if number is None:
        return f"the text {value!r:.40}"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "infinite" if number > 0 else "minus infinite"
    if number == 0:
        return "0"
    return f"negative ({number:g})" if number < 0 else f"{number:g}"


def _as_number(value: object) -> float | None:
    """A JSON number, or the text of one as CSV cells and YAML quotes hold it; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value) if not set(value) & set("_xX") else None
        except ValueError:
            return None
    return None

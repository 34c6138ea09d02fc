"""A number as printed: digits, thousands separators, ×, %, K; and what its last digit leaves open."""

import re
from dataclasses import dataclass
from fractions import Fraction

from wholecurve.curves.claims.interval import Interval
from wholecurve.errors import UserError

WORDS = {
    name: value
    for value, names in enumerate(
        ("zero", "one single", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
         "twelve")
    )
    for name in names.split()
}  # fmt: skip
SHAPE = re.compile(
    r"\$?(?P<sign>[-−+]?)(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<decimals>\.\d+)?"
    r"(?P<suffix>[×x%]|ms|s|K| million)?"
)
SCALES = {"K": 1024, " million": 1_000_000}
UNITS_OF_SUFFIX = {"×": ("×",), "x": ("×",), "%": ("%", "% more", "% less"), "s": ("s",), "ms": ("ms",)}


@dataclass(frozen=True)
class Printed:
    """`value` as a fraction, and `last_digit`, what one unit of the last printed digit is worth."""

    text: str
    value: Fraction
    last_digit: Fraction
    suffix: str = ""

    def rounding(self) -> Interval:
        """Every value that rounds to the printed digits: 41.9 gives [41.85, 41.95]."""
        return self._around(Fraction(1, 2))

    def approximate(self) -> Interval:
        """'about', 'approximately', 'roughly', or read off a figure: one more unit of the last digit on
        both sides, so that about 0.73 gives [0.715, 0.745]."""
        return self._around(Fraction(3, 2))

    def under(self) -> Interval:
        """'nearly' or 'just under': as `approximate`, but not above the number; nearly 4 gives [2.5, 4]."""
        return Interval(self.approximate().low, self.value)

    def _around(self, units: Fraction) -> Interval:
        return Interval(self.value - units * self.last_digit, self.value + units * self.last_digit)


def parse(text: str) -> Printed:
    """'2,095', '1.37×', '2.2x', '38%', '0.86s', '256K' (1,024 each), '$70 million', or a word such as 'two'.

    Raises UserError, naming what the text is, for anything else.
    """
    if text.lower() in WORDS:
        return Printed(text, Fraction(WORDS[text.lower()]), Fraction(1))
    found = SHAPE.fullmatch(text)
    if not found:
        raise UserError(f"is {_what(text)}; digits as printed are needed, such as 2,095 or 1.37× or 38%")
    digits, decimals, suffix = found["digits"].replace(",", ""), found["decimals"] or "", found["suffix"] or ""
    scale = SCALES.get(suffix, 1)
    value = Fraction(digits + decimals) * scale * (-1 if found["sign"] in ("-", "−") else 1)
    if value < 0 and suffix != "%":
        raise UserError(f"is {text!r}, negative; only a percentage can be below 0")
    return Printed(text, value, Fraction(scale, 10 ** max(0, len(decimals) - 1)), suffix)


def _what(text: str) -> str:
    if not text:
        return "empty"
    lower = text.lower().lstrip("+-")
    for name, forms in {"NaN": ("nan",), "null": ("null", "none", "~"), "infinite": ("inf", "infinity")}.items():
        if lower in forms:
            return f"{text!r}, {name}"
    return repr(text)

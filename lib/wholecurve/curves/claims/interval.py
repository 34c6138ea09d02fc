"""Exact interval arithmetic: a printed number stands for every value that rounds to it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Interval:
    """All values from `low` to `high`, both included."""

    low: Fraction
    high: Fraction

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"an interval from {self.low} to {self.high} runs backwards")

    @classmethod
    def exact(cls, value: Fraction) -> "Interval":
        return cls(value, value)

    def __contains__(self, value: Fraction) -> bool:
        return self.low <= value <= self.high

    def within(self, other: "Interval") -> bool:
        return other.low <= self.low and self.high <= other.high

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Interval") -> "Interval":
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(corners), max(corners))

    def __truediv__(self, other: "Interval") -> "Interval":
        """Raises ZeroDivisionError when `other` contains 0: the quotient is then no interval."""
        if 0 in other:
            raise ZeroDivisionError("the divisor's interval contains 0")
        return self * Interval(1 / other.high, 1 / other.low)


@dataclass(frozen=True)
class Estimate:
    """A value computed from printed digits, and the interval of what the digits allow.

    The interval is exact, and not only an enclosure, where every printed number enters a formula once.
    """

    value: Fraction
    interval: Interval

    @classmethod
    def exact(cls, value: int | Fraction) -> "Estimate":
        return cls(Fraction(value), Interval.exact(Fraction(value)))

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value + other.value, self.interval + other.interval)

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.interval - other.interval)

    def __mul__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value * other.value, self.interval * other.interval)

    def __truediv__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value / other.value, self.interval / other.interval)

    def text(self, step: Fraction) -> str:
        """'2.494 [2.483, 2.505]' in units of `step`; the interval is rounded outwards, so it stays true."""
        if self.interval.low == self.interval.high:
            return decimal_text(self.value, max(step, Fraction(1)) if self.value.denominator == 1 else step)
        middle = decimal_text(self.value, step)
        return f"{middle} {interval_text(self.interval, step)}"


def largest(estimates: list[Estimate]) -> Estimate:
    return _extreme(max, estimates)


def smallest(estimates: list[Estimate]) -> Estimate:
    return _extreme(min, estimates)


def _extreme(choose: Callable, estimates: list[Estimate]) -> Estimate:
    low, high = (choose(getattr(e.interval, end) for e in estimates) for end in ("low", "high"))
    return Estimate(choose(e.value for e in estimates), Interval(low, high))


def interval_text(interval: Interval, step: Fraction) -> str:
    low, high = math.floor(interval.low / step) * step, math.ceil(interval.high / step) * step
    return f"[{decimal_text(low, step)}, {decimal_text(high, step)}]"


def decimal_text(value: Fraction, step: Fraction) -> str:
    """`value` rounded to a multiple of `step` (a power of ten), halves away from 0, thousands separated."""
    places = max(0, round(-math.log10(step)))
    scaled = math.floor(abs(value) / step + Fraction(1, 2)) * step
    text = f"{scaled.numerator * 10**places // scaled.denominator:0{places + 1}d}"
    whole, decimals = (text[:-places], text[-places:]) if places else (text, "")
    sign = "−" if value < 0 and scaled else ""
    return f"{sign}{int(whole):,}{'.' if places else ''}{decimals}"

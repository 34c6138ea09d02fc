"""A printed number stands for an interval, and arithmetic on intervals encloses arithmetic on what they stand for."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wholecurve.curves.claims.interval import (
    Estimate,
    Interval,
    decimal_text,
    interval_text,
    largest,
    smallest,
)
from wholecurve.curves.claims.printed import parse

values = st.fractions(min_value=Fraction(1, 100), max_value=100_000, max_denominator=10_000)
decimals = st.integers(min_value=0, max_value=4)


def printed(value, places):
    """How a text would print `value`."""
    return parse(decimal_text(value, Fraction(1, 10**places)))


def estimate(value, places):
    shown = printed(value, places)
    return Estimate(shown.value, shown.rounding())


@given(values, decimals)
def test_the_true_value_lies_in_the_interval_of_its_digits(value, places):
    shown = printed(value, places)
    assert value in shown.rounding()
    assert shown.rounding().within(shown.approximate())
    assert shown.rounding().high - shown.rounding().low == Fraction(1, 10**places)
    assert shown.approximate().high - shown.approximate().low == 3 * Fraction(1, 10**places)


@given(values, decimals, values, decimals)
def test_ratios_products_sums_and_differences_are_enclosed(a, places_a, b, places_b):
    left, right = estimate(a, places_a), estimate(b, places_b)
    assert a * b in (left * right).interval
    assert a + b in (left + right).interval
    assert a - b in (left - right).interval
    assume(right.interval.low > 0)
    assert a / b in (left / right).interval
    assert (left / right).value in (left / right).interval


@given(values, decimals, values, decimals)
def test_the_ends_of_a_ratio_are_reached(a, places_a, b, places_b):
    left, right = estimate(a, places_a), estimate(b, places_b)
    assume(right.interval.low > 0)
    ratio = (left / right).interval
    assert ratio.low == left.interval.low / (right.interval.high if left.interval.low >= 0 else right.interval.low)
    assert ratio.high == left.interval.high / right.interval.low


@given(st.lists(st.tuples(values, decimals), min_size=1, max_size=6))
def test_the_largest_and_the_smallest_are_enclosed(pairs):
    estimates = [estimate(value, places) for value, places in pairs]
    assert max(value for value, _ in pairs) in largest(estimates).interval
    assert min(value for value, _ in pairs) in smallest(estimates).interval


@given(st.fractions(-1000, 1000, max_denominator=997), st.fractions(0, 10, max_denominator=997), decimals)
def test_an_interval_is_printed_outwards(low, width, places):
    step = Fraction(1, 10**places)
    text = interval_text(Interval(low, low + width), step).strip("[]").replace("−", "-").replace(",", "").split()
    assert Fraction(text[0]) <= low and low + width <= Fraction(text[1])
    assert Fraction(text[1]) - Fraction(text[0]) <= width + 2 * step


@given(st.fractions(-100_000, 100_000, max_denominator=10_000), decimals)
def test_text_of_a_value_is_the_nearest_decimal(value, places):
    step = Fraction(1, 10**places)
    text = decimal_text(value, step).replace(",", "").replace("−", "-")
    assert abs(Fraction(text) - value) <= step / 2
    assert len(text.partition(".")[2]) == places


def test_halves_round_away_from_zero_and_thousands_are_separated():
    assert [decimal_text(Fraction(x), Fraction(1, 10)) for x in ("0.25", "-0.25", "1234567.8", "-0.04")] == [
        "0.3",
        "−0.3",
        "1,234,567.8",
        "0.0",
    ]


def test_an_interval_around_zero_divides_nothing():
    around_zero = Interval(Fraction(-1, 2), Fraction(1, 2))
    with pytest.raises(ZeroDivisionError):
        Interval.exact(Fraction(1)) / around_zero
    with pytest.raises(ValueError, match="runs backwards"):
        Interval(Fraction(2), Fraction(1))


def test_negative_intervals_multiply_to_their_corners():
    assert Interval(Fraction(-2), Fraction(3)) * Interval(Fraction(-5), Fraction(1)) == Interval(
        Fraction(-15), Fraction(10)
    )


def test_overlap_and_within_include_the_ends():
    one, two, three = (Interval(Fraction(a), Fraction(b)) for a, b in ((0, 1), (1, 2), (0, 2)))
    assert one.overlaps(two) and two.overlaps(one)
    assert one.within(three) and not three.within(one)
    assert not one.overlaps(Interval(Fraction("1.0001"), Fraction(2)))

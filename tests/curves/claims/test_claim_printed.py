"""Digits as texts print them: ×, %, thousands separators, K, words; and what is not a printed number."""

from fractions import Fraction

import pytest
from claim_builders import number

from wholecurve.curves.claims.printed import parse
from wholecurve.errors import UserError


@pytest.mark.parametrize(
    "text, value, last_digit, suffix",
    [
        ("41.9", "41.9", "0.1", ""),
        ("2,095", "2095", "1", ""),
        ("1,048,576", "1048576", "1", ""),
        ("1.37×", "1.37", "0.01", "×"),
        ("2.2x", "2.2", "0.1", "x"),
        ("1.00×", "1", "0.01", "×"),
        ("38%", "38", "1", "%"),
        ("-3%", "-3", "1", "%"),
        ("−3.5%", "-3.5", "0.1", "%"),
        ("0.86s", "0.86", "0.01", "s"),
        ("12ms", "12", "1", "ms"),
        ("256K", "262144", "1024", "K"),
        ("$70 million", "70000000", "1000000", " million"),
        ("4×", "4", "1", "×"),
        ("Three", "3", "1", ""),
        ("single", "1", "1", ""),
        ("one", "1", "1", ""),
        ("twelve", "12", "1", ""),
    ],
)
def test_printed_digits_become_value_and_last_digit(text, value, last_digit, suffix):
    found = parse(text)
    assert (found.text, found.value, found.last_digit, found.suffix) == (
        text,
        Fraction(value),
        Fraction(last_digit),
        suffix,
    )


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "is empty"),
        ("nan", "'nan', NaN"),
        ("NaN", "NaN"),
        ("inf", "infinite"),
        ("-Infinity", "infinite"),
        ("null", "null"),
        ("None", "null"),
        ("-1.2×", "negative"),
        ("−5", "negative"),
        ("1,2", "digits as printed"),
        ("12,34", "digits as printed"),
        ("1.2.3", "digits as printed"),
        ("1e3", "digits as printed"),
        ("about 4", "digits as printed"),
        ("4 ×", "digits as printed"),
        (".5", "digits as printed"),
    ],
)
def test_what_is_not_a_printed_number_is_refused_by_name(text, says):
    with pytest.raises(UserError, match=says):
        parse(text)


def test_intervals_of_a_number_follow_what_the_text_says_of_it():
    def ends(**fields):
        interval = number("0.73", **fields).interval
        return float(interval.low), float(interval.high)

    assert ends() == (0.725, 0.735)
    assert ends(approximate=True) == (0.715, 0.745)
    assert ends(bound="up to") == (0.725, 0.735)
    assert ends(bound="under", approximate=True) == (0.715, 0.73)
    assert ends(framing="setting") == (0.73, 0.73)
    assert ends(framing="setting", approximate=True) == (0.715, 0.745)
    about = number("4", "requests", framing="setting", approximate=True)
    assert (about.rounding.low, about.rounding.high) == (Fraction(7, 2), Fraction(9, 2))


@pytest.mark.parametrize(
    "text, unit, value, low, high",
    [
        ("1.37×", "×", "1.37", "1.365", "1.375"),
        ("21%", "% more", "1.21", "1.205", "1.215"),
        ("38%", "% less", "0.62", "0.615", "0.625"),
        ("120%", "% more", "2.2", "2.195", "2.205"),
    ],
)
def test_a_percentage_is_a_factor(text, unit, value, low, high):
    factor = number(text, unit).multiplier
    assert (factor.value, factor.interval.low, factor.interval.high) == tuple(map(Fraction, (value, low, high)))


def test_factor_text_reaches_a_tenth_of_the_last_digit():
    assert number("21%", "% more").factor_text == "[1.205, 1.215]"
    assert number("1.37×").factor_text == "[1.365, 1.375]"


@pytest.mark.parametrize(
    "point, at, load",
    [
        ("concurrency=128", "concurrency 128", ("concurrency", 128)),
        ("step_tokens=65536", "step tokens 65,536", ("step_tokens", 65536)),
        ("requests_per_gpu=8", "requests per GPU 8", ("requests_per_gpu", 8)),
        ("speed=389 tok/s/user", "speed 389 tok/s/user", ("speed", 389)),
        ("request_rate=2.5", "request rate 2.5", ("request_rate", Fraction("2.5"))),
        ("concurrency 4 and 8", "concurrency 4 and 8", None),
        ("step_tokens=4096..65536", "step tokens 4096..65536", None),
        ("", "an unstated load", None),
    ],
)
def test_operating_points(point, at, load):
    found = number("1.1×", operating_point=point)
    assert (found.at, found.load) == (at, load)


@pytest.mark.parametrize(
    "printed, quote, offset",
    [
        ("1.12×", "1.09×–1.12×", 6),
        ("4", "EP4 configuration", 2),
        ("4", "1.4 or 4", 7),
        ("3", "roughly 3–4×", 8),
        ("095", "2,095", -1),
        ("2", "2,095", -1),
        ("2.4", "2.49×", -1),
        ("one", "none but one", 9),
        ("8,013", "produces 8,013.", 9),
    ],
)
def test_digits_are_found_in_their_quote_only_as_a_whole_number(printed, quote, offset):
    assert number(printed, "tokens", quote=quote).offset() == offset


def test_sides_of_a_field():
    assert number("1×", n="2 / 1 or 2").sides("n") == ("2", "1 or 2")
    assert number("1×", precision="BF16").sides("precision") == ("BF16", "BF16")
    assert number("1×").sides("n") == ("", "")

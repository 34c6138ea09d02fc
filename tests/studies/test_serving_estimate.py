"""The estimate: what is assumed is what is counted, and finished points correct it, each contender by its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.studies.serving.estimate import (
    MOST_OUTPUT_TOKENS_PER_S,
    OUTPUT_TOKENS_PER_S,
    PROMPT_TOKENS_PER_S,
    START_S,
    Estimate,
    assumed_s,
    in_words,
    work_of,
)
from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.load.turns import Session, Turn


def sessions(count, prompt=100, output=40, delay_s=0.0):
    return [Session(f"s{i}", (Turn(f"t{i}", list(range(prompt)), output, delay_s=delay_s),)) for i in range(count)]


def test_a_closed_point_takes_what_its_tokens_take():
    alone = assumed_s(work_of(sessions(10), ClosedLoad(1)))
    assert alone == pytest.approx(1000 / PROMPT_TOKENS_PER_S + 400 / OUTPUT_TOKENS_PER_S)
    many = assumed_s(work_of(sessions(10), ClosedLoad(1000)))
    assert many == pytest.approx(1000 / PROMPT_TOKENS_PER_S + 400 / MOST_OUTPUT_TOKENS_PER_S)


def test_waits_of_users_and_tools_pass_beside_each_other():
    waiting = assumed_s(work_of(sessions(8, delay_s=60), ClosedLoad(4))) - assumed_s(
        work_of(sessions(8), ClosedLoad(4))
    )
    assert waiting == pytest.approx(8 * 60 / 4)


def test_an_open_point_takes_at_least_as_long_as_its_arrivals():
    assert assumed_s(work_of(sessions(100, 1, 1), OpenLoad(0.5))) == pytest.approx(200)
    recorded = [Session("a", sessions(1)[0].turns, start_s=0.0), Session("b", sessions(1)[0].turns, start_s=600.0)]
    assert assumed_s(work_of(recorded, OpenLoad(2, "recorded"))) == pytest.approx(300)


def test_finished_points_correct_it_each_contender_by_its_own_and_others_by_all():
    estimate = Estimate()
    left = [("fast", 10.0), ("slow", 10.0), ("new", 10.0)]
    assert estimate.left_s(left, starts=2) == pytest.approx(30 + 2 * START_S)
    estimate.finished("fast", assumed=10, took_s=5)
    estimate.finished("slow", assumed=10, took_s=20)
    estimate.starts_s.append(3.0)
    assert estimate.left_s(left, starts=2) == pytest.approx(5 + 20 + 10 + 2 * 3)


@given(st.lists(st.floats(0.1, 1e4), min_size=1), st.floats(0.1, 1e4))
def test_a_contender_that_is_always_off_by_the_same_is_foretold_exactly(assumed, factor):
    estimate = Estimate()
    for seconds in assumed:
        estimate.finished("x", seconds, seconds * factor)
    assert estimate.left_s([("x", 10.0)], 0) == pytest.approx(10 * factor)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5939, "99 min"), (11100, "3 h 05 min")]
)
def test_in_words(seconds, words):
    assert in_words(seconds) == words

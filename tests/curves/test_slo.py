"""Which requests keep a promise: inclusive limits, failures in the denominator, and what cannot be known."""

import pytest
from load_builders import failed, reply

from wholecurve.curves.slo import Slo, divide
from wholecurve.errors import UserError


def test_every_stated_limit_must_be_kept_and_limits_are_inclusive():
    request = reply(first=0.5, gap=0.1, tokens=11)  # TTFT 500, TPOT 100, E2E 1,500 ms
    assert Slo(500, 100, 1500).kept_by(request) is True
    assert Slo(ttft_ms=499.9).kept_by(request) is False
    assert Slo(tpot_ms=99.9).kept_by(request) is False
    assert Slo(e2e_ms=1499.9).kept_by(request) is False
    assert Slo(500, 99.9, 1500).kept_by(request) is False


def test_noise_of_subtracting_recorded_times_breaks_no_limit():
    request = reply(at=0.7, arrivals_s=[0.9], arrival_tokens=[1], finished_s=0.9)
    assert 1e3 * request.ttft_s > 200  # 0.9 - 0.7 is not 0.2 in binary
    assert Slo(ttft_ms=200).kept_by(request)


def test_ttft_runs_from_scheduled():
    assert not Slo(ttft_ms=600).kept_by(reply(at=0.0, sent=2.0, first=2.5))


def test_one_token_cannot_break_a_tpot_limit_and_still_must_keep_the_others():
    single = reply(tokens=1, first=0.5)
    assert Slo(tpot_ms=1).kept_by(single) is True and Slo(ttft_ms=400, tpot_ms=1).kept_by(single) is False


@pytest.mark.parametrize("outcome", ["refused", "empty", "timed out", "disconnected", "truncated", "not connected"])
def test_a_failed_request_keeps_nothing_however_fast_it_failed(outcome):
    request = failed(outcome=outcome, error=None if outcome == "empty" else "gone")
    found = divide([reply(), request], Slo(ttft_ms=10_000))
    assert found.broken == [request] and found.share == 0.5


def test_what_the_client_cancelled_is_unknown_unless_it_was_late_already():
    waiting = failed("w", after=0.3, outcome="cancelled", error="window over")
    begun = reply("b", outcome="cancelled", error="window over")  # first token at 500, stopped at 1,500 ms
    slo = Slo(ttft_ms=400, e2e_ms=2000)
    assert slo.kept_by(waiting) is None and slo.kept_by(begun) is False
    assert Slo(ttft_ms=200).kept_by(waiting) is False
    assert Slo(e2e_ms=1499).kept_by(begun) is False and Slo(e2e_ms=1600).kept_by(begun) is None
    assert Slo(tpot_ms=1).kept_by(begun) is None
    found = divide([reply(first=0.1), waiting], slo)
    assert found.share == 1.0 and found.unknown == [waiting]
    assert divide([waiting], slo).share is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "no limit"),
        ({"ttft_ms": 0}, "ttft_ms is 0"),
        ({"tpot_ms": -1}, "tpot_ms"),
        ({"e2e_ms": float("inf")}, "e2e_ms"),
        ({"e2e_ms": float("nan")}, "e2e_ms"),
        ({"ttft_ms": 1, "share": 0}, "share is 0"),
        ({"ttft_ms": 1, "share": 90}, "0.9 for 90 %"),
        ({"ttft_ms": 1, "itl_ms": 3}, "slo.itl_ms"),
    ],
)
def test_a_promise_that_says_nothing_is_refused(fields, says):
    with pytest.raises(UserError, match=says):
        Slo.from_document(fields)


def test_a_document_without_some_limits_is_read_and_said_in_words():
    slo = Slo.from_document({"ttft_ms": 200, "tpot_ms": None, "e2e_ms": 3000.5, "share": 0.999})
    assert slo == Slo(200, None, 3000.5, 0.999)
    assert slo.text() == "TTFT ≤ 200 ms and E2E ≤ 3000.5 ms for 99.9 % of requests"
    assert Slo.from_document({"tpot_ms": 50, "share": None}).share == 0.9

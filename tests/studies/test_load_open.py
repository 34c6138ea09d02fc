"""The open loop, on virtual time: requests are due by the clock, and what they waited for counts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import ENDPOINT, VirtualClock, factory

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.arrivals import due_times_s
from wholecurve.studies.serving.load.kinds import OpenLoad
from wholecurve.studies.serving.load.open_loop import deal_open
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn


def singles(count, starts=None):
    return [
        Session(f"s{i:04d}", (Turn(f"t{i:04d}", [1, 2, 3], 4),), starts[i] if starts else None) for i in range(count)
    ]


def load(sessions, open_load, service_s=lambda turn: 0.5, fails=lambda turn: None, made=None, **arguments):
    return run_load(
        ENDPOINT, sessions, open_load, client_factory=factory(service_s, fails, made),
        time_source=VirtualClock(5.0).time_source(), **arguments,
    )  # fmt: skip


def test_latency_counts_from_the_schedule_when_requests_queue_before_the_client():
    """vllm#54101: 500 ms of service, 10 requests/s, 8 requests, one at a time: 506 ms was told, 1,932 ms is true."""
    result = load(singles(8), OpenLoad(10, "constant", most_in_flight=1))
    ends = [trace.e2e_s for trace in result.traces]
    assert ends == pytest.approx([0.5 + 0.4 * i for i in range(8)], abs=1e-3)
    assert np.mean(ends) == pytest.approx(1.9, abs=1e-3)
    # Waiting for a place is the load's own doing, not the client's lag.
    assert result.lag["send_late_max_ms"] == pytest.approx(0, abs=0.1)


def test_an_open_loop_never_waits_for_the_server():
    made = []
    result = load(singles(50), OpenLoad(100, "constant"), service_s=lambda turn: 60.0, made=made)
    assert made[0].most_in_flight == 50
    assert [trace.sent_s for trace in result.traces] == pytest.approx([i / 100 for i in range(50)], abs=1e-4)


def test_limit_is_kept_and_places_are_given_in_the_order_of_the_schedule():
    made = []
    service = lambda turn: 0.3 + 0.1 * (int(turn.turn_id[1:]) % 3)  # noqa: E731
    result = load(singles(30), OpenLoad(50, "constant", most_in_flight=4), service_s=service, made=made)
    assert made[0].most_in_flight == 4
    sent = [trace.sent_s for trace in result.traces]
    assert sent == sorted(sent)
    assert [trace.scheduled_s for trace in result.traces] == pytest.approx([i / 50 for i in range(30)])


def test_a_failed_request_delays_and_skips_no_other():
    broken = load(
        singles(40), OpenLoad(20, seed=3), fails=lambda turn: "disconnected" if turn.turn_id == "t0007" else None
    )
    whole = load(singles(40), OpenLoad(20, seed=3))
    assert [t.sent_s for t in broken.traces] == pytest.approx([t.sent_s for t in whole.traces], abs=1e-6)
    assert [t.request for t in broken.traces if not t.completed] == ["t0007"]


def test_sessions_due_from_until_on_are_not_started():
    result = load(singles(100), OpenLoad(10, "constant"), until_s=2.0)
    assert len(result.traces) == 20 and len(result.not_sent) == 80
    assert all(trace.completed for trace in result.traces)


def test_what_was_due_before_until_is_sent_after_it():
    result = load(singles(10), OpenLoad(10, "constant", most_in_flight=1), until_s=0.45)
    assert len(result.traces) == 5 and all(trace.completed for trace in result.traces)
    assert result.traces[-1].e2e_s == pytest.approx(0.5 * 5 - 0.4, abs=1e-3)


def test_what_was_due_and_found_no_place_is_a_failure_and_not_left_out():
    """Leaving it out would be the coordinated omission that an open loop exists to avoid."""
    result = load(singles(10), OpenLoad(10, "constant", most_in_flight=1), until_s=0.45, grace_s=0.7)
    assert [trace.outcome for trace in result.traces] == ["completed"] * 2 + ["cancelled"] * 3
    queued = result.traces[3]
    assert queued.scheduled_s == pytest.approx(0.3) and queued.sent_s == pytest.approx(1.15, abs=1e-3)
    assert "never sent" in queued.error
    assert result.not_sent == [f"t{i:04d}" for i in range(5, 10)]
    for trace in result.traces:
        trace.check()


def test_recorded_arrivals_are_replayed_and_sped_up():
    starts = [0.0, 0.25, 3.0, 1.0]
    result = load(singles(4, starts), OpenLoad(2.0, "recorded"))
    assert [trace.scheduled_s for trace in result.traces] == pytest.approx([0, 0.125, 1.5, 0.5])
    assert [trace.sent_s for trace in result.traces] == pytest.approx([0, 0.125, 1.5, 0.5], abs=1e-4)


def test_server_that_refuses_everything_is_given_up_in_a_long_gap():
    starts = [0.01 * i for i in range(12)] + [5000.0]
    result = load(singles(13, starts), OpenLoad(1, "recorded"), service_s=lambda t: 0.001, fails=lambda t: "refused")
    assert result.gave_up.startswith("10 requests in a row failed")
    assert len(result.traces) == 10 and result.lag["wall_s"] < 10


def test_fault_of_the_client_is_not_left_until_the_next_arrival():
    def fault(turn):
        raise RuntimeError("fault of the client")

    clock = VirtualClock()
    with pytest.raises(RuntimeError, match="fault of the client"):
        run_load(
            ENDPOINT, singles(2, [0.0, 5000.0]), OpenLoad(1, "recorded"), client_factory=factory(fault),
            time_source=clock.time_source(),
        )  # fmt: skip
    assert clock.now < 10


@pytest.mark.parametrize(
    ("open_load", "starts", "text"),
    [
        (OpenLoad(0), None, "rate_per_s is 0"),
        (OpenLoad(float("inf")), None, "rate_per_s is inf; a finite number above 0"),
        (OpenLoad(1, "bursts", burstiness=0), None, "burstiness is 0"),
        (OpenLoad(1, most_in_flight=0), None, "most_in_flight is 0; at least 1 is needed, or none for no limit"),
        (OpenLoad(1, ramp_s=-1), None, "ramp_s is -1"),
        (OpenLoad(1, "sometimes"), None, "arrivals are 'sometimes'"),
        (OpenLoad(1, "recorded", ramp_s=2), [0, 1, 2], "ramp_s is 2, but recorded arrivals"),
        (OpenLoad(1, "recorded"), None, "session s0000: start_s is None"),
        (OpenLoad(1, "recorded"), [0, -1, 2], "session s0001: start_s is -1"),
    ],
)
def test_impossible_open_loads_are_named(open_load, starts, text):
    with pytest.raises(UserError, match=text):
        load(singles(3, starts), open_load)


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "bursts"])
@given(rate=st.floats(0.01, 1000), seed=st.integers(0, 9))
def test_levels_of_a_study_differ_in_pace_alone(arrivals, rate, seed):
    """Gaps of two rates are in the ratio of the rates, so that a curve over rates compares the same bursts."""
    sessions = singles(30)
    one = np.array(due_times_s(OpenLoad(1.0, arrivals, burstiness=0.3, seed=seed), sessions))
    other = np.array(due_times_s(OpenLoad(rate, arrivals, burstiness=0.3, seed=seed), sessions))
    assert other * rate == pytest.approx(one, abs=1e-6 * max(rate, 1))
    assert one[0] == 0 and all(later >= earlier for earlier, later in pairwise(one))


def test_distribution_of_the_gaps():
    """Mean 1/rate for all; coefficient of variation 0, 1, and 1/√burstiness."""
    sessions = singles(20000)
    for arrivals, burstiness, spread in (
        ("constant", 1, 0),
        ("poisson", 1, 1),
        ("bursts", 0.25, 2),
        ("bursts", 4, 0.5),
    ):
        gaps = np.diff(due_times_s(OpenLoad(8.0, arrivals, burstiness, seed=1), sessions))
        assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=0.06 * spread + 1e-4)


def test_seeds_draw_different_arrivals():
    sessions = singles(20)
    assert due_times_s(OpenLoad(1, seed=1), sessions) != due_times_s(OpenLoad(1, seed=2), sessions)


def test_rate_rises_linearly_within_the_ramp():
    """After t seconds of a ramp of 10 s to 20/s, t² sessions are due; then 20 each second."""
    due = np.array(due_times_s(OpenLoad(20.0, "constant", ramp_s=10.0), singles(300)))
    for t in (1, 3, 5, 10):
        assert abs(np.sum(due <= t) - (t * t + 1)) <= 1
    assert np.sum((due > 11) & (due <= 14)) == 60


@given(count=st.integers(1, 60), processes=st.integers(1, 9), most=st.none() | st.integers(1, 20))
def test_dealing_loses_and_doubles_nothing(count, processes, most):
    shares = deal_open(OpenLoad(3.0, seed=2, most_in_flight=most), singles(count), processes)
    dealt = sorted(
        zip([s.session_id for share in shares for s in share.sessions], [t for x in shares for t in x.due_s])
    )
    expected = zip([s.session_id for s in singles(count)], due_times_s(OpenLoad(3.0, seed=2), singles(count)))
    assert dealt == sorted(expected)
    assert len(shares) <= processes
    if most is not None:
        assert sum(share.most_in_flight for share in shares) == most
        assert all(share.most_in_flight >= 1 for share in shares)
    else:
        assert all(share.most_in_flight is None for share in shares)

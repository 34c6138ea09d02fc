"""The closed loop, on virtual time: what is in flight, when, and what happens when requests fail."""

import pytest
from virtual_time import ENDPOINT, VirtualClock, factory

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn


def singles(count, tokens=4):
    return [Session(f"s{i:03d}", (Turn(f"t{i:03d}", [1, 2, 3], tokens),)) for i in range(count)]


def load(sessions, concurrency, **arguments):
    clock = VirtualClock(now=arguments.pop("now", 0.0))
    ramp_s = arguments.pop("ramp_s", 0.0)
    names = ("service_s", "fails", "made")
    make = factory(**{name: arguments.pop(name) for name in names if name in arguments})
    return run_load(
        ENDPOINT, sessions, ClosedLoad(concurrency, ramp_s), client_factory=make, time_source=clock.time_source(),
        **arguments,
    )  # fmt: skip


def test_closed_loop_keeps_exactly_its_concurrency_in_flight():
    made = []
    result = load(singles(40), 8, made=made, service_s=lambda turn: 0.1 + 0.01 * (int(turn.turn_id[1:]) % 7))
    assert made[0].most_in_flight == 8
    assert [trace.request for trace in result.traces] == [f"t{i:03d}" for i in range(40)]
    assert [trace.session for trace in result.traces] == [f"s{i:03d}" for i in range(40)]
    assert result.not_sent == [] and result.gave_up is None
    # At every moment before the last request was sent, eight are between scheduled and finished.
    last = max(trace.sent_s for trace in result.traces)
    for moment in (trace.sent_s + 1e-4 for trace in result.traces):
        if moment < last:
            assert sum(trace.scheduled_s <= moment < trace.finished_s for trace in result.traces) == 8


def test_next_session_is_scheduled_when_the_slot_frees_not_when_it_is_noticed():
    result = load(singles(3), 1, service_s=lambda turn: 0.25)
    assert [trace.scheduled_s for trace in result.traces] == pytest.approx([0, 0.25, 0.5], abs=1e-5)
    assert result.traces[1].scheduled_s == result.traces[0].finished_s


@pytest.mark.parametrize("now", [0.0, 12345.6789, 3e6 + 0.0007])
def test_window_does_not_depend_on_the_clock_that_it_began_on(now):
    result = load(singles(6), 2, service_s=lambda turn: 0.5, now=now)
    assert [trace.scheduled_s for trace in result.traces] == pytest.approx([0, 0, 0.5, 0.5, 1, 1], abs=1e-4)
    assert 0 <= result.began_monotonic_s - now <= 0.001


def test_slots_open_evenly_over_the_ramp_and_take_sessions_in_order():
    result = load(singles(8), 4, ramp_s=2.0, service_s=lambda turn: 10.0)
    assert [trace.scheduled_s for trace in result.traces[:4]] == pytest.approx([0, 0.5, 1, 1.5])
    assert [trace.scheduled_s for trace in result.traces[4:]] == pytest.approx([10, 10.5, 11, 11.5], abs=1e-4)


def test_no_session_starts_from_until_on_and_what_runs_is_finished():
    result = load(singles(20), 2, service_s=lambda turn: 1.0, until_s=2.5)
    assert len(result.traces) == 6 and all(trace.completed for trace in result.traces)
    assert result.not_sent == [f"t{i:03d}" for i in range(6, 20)]


def test_what_still_runs_after_the_grace_is_cancelled_with_what_it_had():
    result = load(singles(9), 2, service_s=lambda turn: 2.0, until_s=3.0, grace_s=0.5)
    assert [trace.outcome for trace in result.traces] == ["completed"] * 2 + ["cancelled"] * 2
    assert [trace.finished_s for trace in result.traces[2:]] == pytest.approx([3.5, 3.5], abs=1e-4)
    assert result.gave_up is None and len(result.not_sent) == 5


def test_slots_of_a_ramp_that_would_open_after_until_stay_shut():
    result = load(singles(4), 4, ramp_s=4.0, service_s=lambda turn: 0.1, until_s=1.5)
    # Slot 0 goes through sessions from 0 on, slot 1 from 1 on; slots at 2 and 3 never open.
    assert len(result.traces) == 4 and max(trace.scheduled_s for trace in result.traces) < 1.5


def test_a_failure_ends_its_session_and_the_slot_goes_on():
    result = load(singles(6), 1, fails=lambda turn: "refused" if turn.turn_id == "t002" else None)
    assert [trace.outcome for trace in result.traces] == ["completed"] * 2 + ["refused"] + ["completed"] * 3
    assert [trace.scheduled_s for trace in result.traces] == pytest.approx([0, 1, 2, 3, 4, 5], abs=1e-4)


def test_server_that_refuses_everything_is_asked_ever_more_slowly_and_given_up():
    result = load(singles(500), 1, service_s=lambda turn: 0.001, fails=lambda turn: "refused")
    assert len(result.traces) == 10 and len(result.not_sent) == 490
    assert result.gave_up == "10 requests in a row failed; the last one, t009: refused: scripted: refused"
    gaps = [b.scheduled_s - a.finished_s for a, b in zip(result.traces, result.traces[1:])]
    assert gaps == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], abs=1e-4)


def test_giving_up_takes_more_failures_than_were_ever_in_flight_at_once():
    result = load(singles(500), 64, service_s=lambda turn: 0.01, fails=lambda turn: "not connected")
    assert 128 <= len(result.traces) < 192 and result.gave_up.startswith("128 requests in a row failed")


def test_one_success_in_between_is_no_reason_to_give_up():
    fails = lambda turn: None if int(turn.turn_id[1:]) % 9 == 0 else "server error"  # noqa: E731
    result = load(singles(90), 1, fails=fails)
    assert result.gave_up is None and len(result.traces) == 90


def test_progress_counts_requests_that_ended():
    seen = []
    load(singles(5), 2, on_progress=seen.append)
    assert seen == [1, 2, 3, 4, 5]


def test_reply_without_a_token_is_a_failure():
    """An empty reply is no request in 0 ms: vLLM once reported a median TTFT of 0.00 over 1,000 of them."""
    sessions = [Session("s", (Turn("a", [1], 0), Turn("b", [1], 4, after=("a",))))]
    result = load(sessions, 1)
    assert not result.traces[0].completed and result.not_sent == ["b"]


@pytest.mark.parametrize(
    ("concurrency", "ramp_s", "text"),
    [
        (0, 0.0, "closed load: concurrency is 0; at least 1 is needed"),
        (7, 0.0, "closed load: 6 sessions cannot keep 7 in flight"),
        (2, -1.0, "closed load: ramp_s is -1.0"),
        (2, float("nan"), "closed load: ramp_s is nan"),
    ],
)
def test_impossible_closed_loads_are_named(concurrency, ramp_s, text):
    with pytest.raises(UserError, match=text):
        load(singles(6), concurrency, ramp_s=ramp_s)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"processes": 0}, "processes are 0"),
        ({"until_s": 0.0}, "until_s is 0.0"),
        ({"grace_s": 1.0}, "grace_s is 1.0 with until_s None"),
        ({"until_s": 1.0, "grace_s": -1.0}, "grace_s is -1.0"),
    ],
)
def test_impossible_arguments_are_named(arguments, text):
    with pytest.raises(UserError, match=text):
        load(singles(2), 1, **arguments)


def test_no_sessions_and_turns_that_are_there_twice_are_named():
    with pytest.raises(UserError, match="there are no sessions"):
        load([], 1)
    twice = [Session("a", (Turn("t", [1], 1),)), Session("b", (Turn("t", [1], 1),))]
    with pytest.raises(UserError, match="session b: turn t is in an earlier session as well"):
        load(twice, 1)


def test_requests_that_the_client_cancels_are_no_failures_of_the_server():
    """Eight in a row were refused; the two that are cancelled after them do not make ten."""
    hangs = lambda turn: int(turn.turn_id[1:]) >= 8  # noqa: E731
    result = load(
        singles(20), 2, service_s=lambda turn: 999.0 if hangs(turn) else 0.1,
        fails=lambda turn: None if hangs(turn) else "refused", until_s=10.0, grace_s=1.0,
    )  # fmt: skip
    assert [trace.outcome for trace in result.traces] == ["refused"] * 8 + ["cancelled"] * 2
    assert result.gave_up is None

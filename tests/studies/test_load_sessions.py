"""Sessions of turns, on virtual time: who waits for whom, and who is not sent."""

import asyncio
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import ENDPOINT, VirtualClock, factory, reply

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn


def turn(name, after=(), delay_s=0.0):
    return Turn(name, [1, 2], 3, tuple(after), delay_s)


def load(sessions, open_or_closed=None, make=None, **arguments):
    return run_load(
        ENDPOINT, sessions, open_or_closed or ClosedLoad(1), client_factory=make or factory(),
        time_source=VirtualClock(77.0).time_source(), **arguments,
    )  # fmt: skip


def times(result):
    return {trace.request: (trace.scheduled_s, trace.finished_s) for trace in result.traces}


def test_turns_follow_one_another_after_their_delays():
    session = Session("s", (turn("a"), turn("b", "a", 2.0), turn("c", "b", 0.5)))
    found = times(load([session]))
    assert found["a"] == pytest.approx((0, 1), abs=1e-4)
    assert found["b"] == pytest.approx((3, 4), abs=1e-4)
    assert found["c"] == pytest.approx((4.5, 5.5), abs=1e-4)


def test_sub_agents_run_at_once_and_their_parent_waits_for_the_slowest():
    session = Session("s", (turn("a"), turn("x", "a"), turn("y", "a"), turn("z", "a"), turn("b", "xyz", 0.25)))
    made = []
    slow = {"x": 1.0, "y": 4.0, "z": 2.0}
    result = load([session], make=factory(lambda t: slow.get(t.turn_id, 1.0), made=made))
    found = times(result)
    assert [found[name][0] for name in "xyz"] == pytest.approx([1, 1, 1], abs=1e-4)
    assert found["b"][0] == pytest.approx(5.25, abs=1e-4)
    assert made[0].most_in_flight == 3


def test_after_a_failed_turn_what_waits_for_it_is_not_sent_and_what_does_not_is():
    session = Session("s", (turn("a"), turn("x", "a"), turn("y", "a"), turn("z", "y"), turn("b", "xz"), turn("c", "b")))
    result = load(
        [session, Session("t", (turn("q"),))], make=factory(fails=lambda t: "refused" if t.turn_id == "x" else None)
    )
    assert [trace.request for trace in result.traces] == ["a", "x", "y", "z", "q"]
    assert result.not_sent == ["b", "c"]
    # The session is over when its last turn is, and only then does the slot go on.
    assert times(result)["q"][0] == pytest.approx(times(result)["z"][1], abs=1e-4)


def test_delay_of_a_first_turn_counts_from_the_start_of_its_session():
    sessions = [Session(name, (turn(name, delay_s=0.5),)) for name in "ab"]
    found = times(load(sessions))
    assert found["a"][0] == pytest.approx(0.5) and found["b"][0] == pytest.approx(2.0, abs=1e-4)


def test_sessions_in_flight_stay_at_the_concurrency_while_users_think():
    sessions = [Session(f"s{i}", (turn(f"a{i}"), turn(f"b{i}", [f"a{i}"], 3.0))) for i in range(9)]
    result = load(sessions, ClosedLoad(3))
    # 1 s, 3 s of thought, 1 s: three sessions in each 5 s.
    assert [times(result)[f"a{i}"][0] for i in range(9)] == pytest.approx([0] * 3 + [5] * 3 + [10] * 3, abs=1e-3)


def test_running_sessions_finish_their_turns_after_until():
    session = Session("s", (turn("a"), turn("b", "a", 5.0)))
    result = load([session, Session("t", (turn("q"),))], until_s=0.5)
    assert [trace.request for trace in result.traces] == ["a", "b"] and result.not_sent == ["q"]


def test_a_session_that_thinks_when_the_grace_is_over_sends_no_more():
    session = Session("s", (turn("a"), turn("b", "a", 500.0)))
    result = load([session], until_s=0.5, grace_s=2.0)
    assert [trace.request for trace in result.traces] == ["a"] and result.not_sent == ["b"]
    assert result.traces[0].outcome == "completed" and result.lag["wall_s"] == pytest.approx(2.5, abs=0.01)


def test_open_loop_queues_whole_sessions():
    sessions = [Session(f"s{i}", (turn(f"a{i}"), turn(f"b{i}", [f"a{i}"]))) for i in range(3)]
    found = times(load(sessions, OpenLoad(1.0, "constant", most_in_flight=1)))
    # Each session takes 2 s and is due 1 s after the one before it.
    assert [found[f"a{i}"][0] for i in range(3)] == pytest.approx([0, 1, 2])
    assert [found[f"b{i}"] for i in range(3)] == [pytest.approx((1 + 2 * i, 2 + 2 * i), abs=1e-3) for i in range(3)]


def test_turn_that_waits_for_one_behind_it_is_named():
    with pytest.raises(UserError, match="session s: turn a waits for b, which is not before it"):
        load([Session("s", (turn("a", "b"), turn("b")))])


@st.composite
def random_sessions(draw):
    sessions = []
    for number in range(draw(st.integers(1, 5))):
        turns = []
        for index in range(draw(st.integers(1, 7))):
            earlier = [t.turn_id for t in turns]
            after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
            delay = draw(st.sampled_from([0.0, 0.01, 0.15]))
            turns.append(turn(f"{number}.{index}", after, delay))
        sessions.append(Session(f"s{number}", tuple(turns)))
    return sessions


@settings(max_examples=40)
@given(sessions=random_sessions(), data=st.data(), concurrency=st.integers(1, 3))
def test_every_turn_is_sent_once_when_it_may_or_is_named(sessions, data, concurrency):
    names = [t.turn_id for s in sessions for t in s.turns]
    failing = data.draw(st.sets(st.sampled_from(names), max_size=3))
    load_kind = ClosedLoad(min(concurrency, len(sessions)))
    result = load(sessions, load_kind, factory(lambda t: 0.05, lambda t: "timed out" if t.turn_id in failing else None))
    by_name = {trace.request: trace for trace in result.traces}
    assert len(by_name) == len(result.traces)
    assert sorted([*by_name, *result.not_sent]) == sorted(names)
    for session in sessions:
        for one in session.turns:
            may = all(name in by_name and by_name[name].completed for name in one.after)
            assert (one.turn_id in by_name) == may
            if may and one.after:
                last = max(by_name[name].finished_s for name in one.after)
                assert by_name[one.turn_id].scheduled_s == pytest.approx(last + one.delay_s)
    for trace in result.traces:
        trace.check()


class RudeClient:
    """Cancelled requests raise, and `breaks` names a turn at which the client itself is at fault."""

    def __init__(self, clock, breaks):
        self.clock, self.breaks, self.cancelled, self.closed = clock, breaks, 0, False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.closed = True

    async def send(self, turn, scheduled_s, session=None):
        sent_s = self.clock()
        try:
            await asyncio.sleep(1.0 if turn.turn_id == self.breaks else 10.0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if turn.turn_id == self.breaks:
            raise RuntimeError("fault of the client")
        return reply(turn, scheduled_s, sent_s, [self.clock()], self.clock(), session)


def test_client_that_ends_cancelled_requests_without_a_trace_gets_one():
    result = load([Session("s", (turn("a"),))], until_s=1.0, grace_s=1.0, make=lambda e, clock: RudeClient(clock, None))
    trace = result.traces[0]
    assert (trace.outcome, trace.request, trace.session) == ("cancelled", "a", "s")
    assert (trace.sent_s, trace.finished_s) == pytest.approx((0, 2), abs=1e-3)
    trace.check()


@pytest.mark.parametrize(
    ("kind", "together"), list(product([ClosedLoad(3), OpenLoad(50, most_in_flight=4), OpenLoad(50)], [0, 1]))
)
def test_fault_of_the_client_itself_is_not_taken_for_the_servers(kind, together):
    """It ends the load with what was raised, and nothing stays in flight."""
    made = []

    def make(endpoint, clock):
        made.append(RudeClient(clock, "b"))
        return made[0]

    sessions = [Session(name, (turn(name),)) for name in "abc"]
    if together:
        sessions = [Session("s", (turn("a"), turn("b"), turn("c"))), *(Session(n, (turn(n),)) for n in "xy")]
    with pytest.raises(RuntimeError, match="fault of the client"):
        load(sessions, kind, make)
    assert made[0].cancelled >= 2 and made[0].closed


class LingeringClient:
    """Replies are over after ``ends_s`` of a turn, but the client only comes back after ``returns_s``."""

    def __init__(self, clock, ends_s, returns_s):
        self.clock, self.ends_s, self.returns_s = clock, ends_s, returns_s

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, turn, scheduled_s, session=None):
        sent_s = self.clock()
        await asyncio.sleep(self.ends_s.get(turn.turn_id, 1.0))
        now = self.clock()
        await asyncio.sleep(self.returns_s.get(turn.turn_id, 0.0))
        return reply(turn, scheduled_s, sent_s, [now], now, session)


def test_time_that_the_client_takes_after_a_reply_is_its_own_lag_and_no_later_schedule():
    sessions = [Session("s", (turn("a"), turn("b", "a"))), Session("t", (turn("c"),))]
    returns_s = {"a": 0.25, "b": 0.5}
    result = load(sessions, make=lambda endpoint, clock: LingeringClient(clock, {}, returns_s))
    found = times(result)
    assert found["b"][0] == found["a"][1] and found["c"][0] == found["b"][1]
    assert [trace.sent_s - trace.scheduled_s for trace in result.traces] == pytest.approx([0, 0.25, 0.5], abs=1e-4)
    assert result.lag["send_late_max_ms"] == pytest.approx(500, abs=0.1)


def test_session_is_over_with_the_reply_that_ended_last_not_with_the_one_that_came_back_last():
    sessions = [Session("s", (turn("x"), turn("y"))), Session("t", (turn("c"),))]
    found = times(load(sessions, make=lambda endpoint, clock: LingeringClient(clock, {"y": 2.0}, {"x": 3.0})))
    assert found["c"][0] == found["y"][1] == pytest.approx(2.0, abs=1e-4)


def test_of_a_session_that_was_due_and_found_no_place_its_first_turns_count_as_failed():
    sessions = [Session(f"s{i}", (turn(f"a{i}"), turn(f"b{i}", [f"a{i}"]))) for i in range(2)]
    result = load(sessions, OpenLoad(10, "constant", most_in_flight=1), until_s=0.5, grace_s=0.25)
    assert [(trace.request, trace.outcome) for trace in result.traces] == [("a0", "cancelled"), ("a1", "cancelled")]
    assert result.not_sent == ["b0", "b1"]

"""Loads with the real client against a server whose replies are scripted."""

import pytest

from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.load.machines import LocalMachine, run_load_on
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.proof.fake_server import FakeServer, refusing_endpoint
from wholecurve.studies.serving.proof.script import Script

QUICK = Script(ttft_s=0.01, gaps_s=(0.001,))
ENDLESS = Script(ttft_s=0.01, gaps_s=(0.01,), fault="stalls", after_chunks=3)


def sessions_of(count, tokens=5):
    return [
        Session(f"s{i}", (
            Turn(f"a{i}", [1, 2, 3], tokens, extra_body={"label": f"a{i}"}),
            Turn(f"b{i}", [1, 2, 3, 4], tokens, after=(f"a{i}",), extra_body={"label": f"b{i}"}),
        ))
        for i in range(count)
    ]  # fmt: skip


def assert_as_the_server_saw(result, server, uncertainty_s=0.0):
    """Nothing lost or doubled, and nothing arrived before it was written: both read one monotonic clock."""
    replies = {reply.label: reply for reply in server.replies()}
    assert sorted(replies) == sorted(trace.request for trace in result.traces)
    for trace in result.traces:
        reply = replies[trace.request]
        assert trace.output_tokens == reply.output_tokens
        arrived = [at for at, tokens in zip(trace.arrivals_s, trace.arrival_tokens) if tokens]
        for at, written_s in zip(arrived, reply.chunk_written_s, strict=True):
            assert result.began_monotonic_s + at >= written_s - uncertainty_s - 1e-6
        assert result.began_monotonic_s + trace.sent_s <= reply.first_byte_s + uncertainty_s + 1e-6
        trace.check()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("load", [ClosedLoad(3), OpenLoad(100.0, seed=2, most_in_flight=4)])
def test_load_is_whole_and_on_the_clock_of_the_machine(load, processes):
    with FakeServer(QUICK) as server:
        result = run_load(server.endpoint(), sessions_of(8), load, processes=processes)
        assert_as_the_server_saw(result, server)
    assert [trace.outcome for trace in result.traces] == ["completed"] * 16
    assert result.lag["send_late_max_ms"] >= 0 and result.lag["loop_delay_p50_ms"] >= 0


def test_two_machines_with_wrong_clocks_on_one_server():
    with FakeServer(QUICK) as server, LocalMachine("a", skew_s=77.0) as a, LocalMachine("b", skew_s=-1e4) as b:
        result = run_load_on([a, b], server.endpoint(), sessions_of(6), ClosedLoad(4))
        assert_as_the_server_saw(result, server, result.lag["clock_uncertainty_ms"] / 1e3)


def test_replies_that_are_cancelled_at_the_end_of_the_grace_keep_what_had_arrived():
    with FakeServer(ENDLESS) as server:
        result = run_load(server.endpoint(), sessions_of(4), ClosedLoad(2), until_s=0.5, grace_s=0.5)
        assert_as_the_server_saw(result, server)
    assert [trace.outcome for trace in result.traces] == ["cancelled"] * 2
    assert [trace.output_tokens for trace in result.traces] == [3, 3]
    assert result.not_sent == ["b0", "b1", "a2", "b2", "a3", "b3"] and result.gave_up is None


def test_a_server_that_is_not_there_is_given_up_with_its_reason():
    with refusing_endpoint() as endpoint:
        result = run_load(endpoint, sessions_of(100), ClosedLoad(8))
    assert result.gave_up.startswith("16 requests in a row failed") and "not connected" in result.gave_up
    assert {trace.outcome for trace in result.traces} == {"not connected"}
    assert len(result.not_sent) + len(result.traces) == 200


def test_a_server_that_dies_within_the_load_ends_it():
    """What was in flight is cut off, what follows is refused, and then the load gives up; nothing hangs."""
    with FakeServer(QUICK) as server:
        ended = []

        def kill_after_ten(count):
            ended.append(count)
            if count == 10:
                server.kill()

        result = run_load(server.endpoint(), sessions_of(200), ClosedLoad(4), on_progress=kill_after_ten)
    assert sum(trace.completed for trace in result.traces) >= 10
    assert result.gave_up is not None and result.not_sent
    assert {trace.outcome for trace in result.traces if not trace.completed} <= {"disconnected", "not connected"}

"""Every fault of a server becomes its outcome, the requests beside it do not notice, and the load goes on."""

import asyncio
import time

import pytest

from wholecurve.studies.serving.client.client import Client
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.load.window import new_event_loop
from wholecurve.studies.serving.proof.fake_server import FakeServer, refusing_endpoint
from wholecurve.studies.serving.proof.script import FAULTS
from wholecurve.studies.serving.proof.truth import count_differences, deliveries_s, paired
from wholecurve.trace import OUTCOMES

TOKENS = 6
# A script, the outcome it must have, and the content tokens that arrived before it went wrong.
CASES = {
    "never answers": ({"fault": "never answers"}, "timed out", 0),
    "closes at once": ({"fault": "closes at once"}, "disconnected", 0),
    "not http": ({"fault": "not http"}, "malformed", 0),
    "stalls": ({"fault": "stalls", "after_chunks": 2}, "timed out", 2),
    "stalls before a token": ({"fault": "stalls"}, "timed out", 0),
    # The reset waits a little: one that comes at once may throw away what was sent just before it.
    "resets": ({"fault": "resets", "after_chunks": 2, "gaps_s": [0.1]}, "disconnected", 2),
    "closes": ({"fault": "closes", "after_chunks": 2}, "disconnected", 2),
    "closes mid-event": ({"fault": "closes mid-event", "after_chunks": 2}, "disconnected", 2),
    "truncated": ({"fault": "truncated", "after_chunks": 2}, "truncated", 2),
    "truncated before a token": ({"fault": "truncated"}, "truncated", 0),
    "garbage": ({"fault": "garbage", "after_chunks": 2}, "malformed", 2),
    "bad json": ({"fault": "bad json", "after_chunks": 2}, "malformed", 2),
    "no chunk": ({"fault": "no chunk", "after_chunks": 2}, "malformed", 2),
    "error event": ({"fault": "error event", "after_chunks": 2}, "server error", 2),
    "error event before a token": ({"fault": "error event"}, "server error", 0),
    "empty": ({"output_tokens": 0}, "empty", 0),
    "slow headers": ({"headers_s": 60}, "timed out", 0),
    "slow first token": ({"ttft_s": 60}, "timed out", 0),
    "too slow tokens": ({"gaps_s": [0.01, 60]}, "timed out", 2),
    "content length too short": ({"content_length": "too short"}, "malformed", None),
    "ended neither with a reason nor with done": ({"finish_reason": None, "done_event": False}, "truncated", 6),
    **{f"status {status}": ({"status": status}, "refused", 0) for status in (400, 401, 404, 422, 429, 500, 503)},
}
TIMED_OUT = [name for name, (_, outcome, _) in CASES.items() if outcome == "timed out"]


@pytest.fixture(scope="module")
def shared_server():
    with FakeServer() as server:
        yield server


@pytest.fixture
def server(shared_server):
    shared_server.clear()
    return shared_server


def turn(name="one", script=None, tokens=TOKENS, prompt=(1, 2, 3)):
    return Turn(name, list(prompt), tokens, extra_body={"label": name, "script": script or {}})


def run_on(make_loop, main):
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main)


def send(endpoint, *turns, make_loop=new_event_loop):
    """All turns at once with one client."""

    async def run():
        began_s = time.monotonic()
        async with Client(endpoint, lambda: time.monotonic() - began_s) as client:
            return await asyncio.gather(*(client.send(one, 0.0) for one in turns))

    return run_on(make_loop, run())


def test_the_cases_have_every_fault_and_every_outcome_but_those_with_tests_of_their_own():
    assert {script.get("fault") for script, _, _ in CASES.values()} >= set(FAULTS)
    apart = {"completed", "not connected", "cancelled"}
    assert {outcome for _, outcome, _ in CASES.values()} | apart == set(OUTCOMES)


# A load runs on uvloop where it is installed; chunks of a chat and the loop that comes with Python are tried together.
BOTH = pytest.mark.parametrize(
    ("api", "make_loop"), [("completions", new_event_loop), ("chat", asyncio.new_event_loop)]
)


def prompt_of(api):
    return [{"role": "user", "content": "one two"}] if api == "chat" else [1, 2, 3]


def assert_failed_as(trace, outcome, tokens):
    assert trace.outcome == outcome
    assert trace.error and "\n" not in trace.error
    assert not trace.completed and trace.ttft_s is None and trace.tpot_s is None
    if tokens is not None:
        assert trace.output_tokens == tokens
    trace.check()


@BOTH
@pytest.mark.parametrize("name", [name for name in CASES if name not in TIMED_OUT])
def test_a_fault_is_its_outcome_and_what_came_before_it_is_kept(server, name, api, make_loop):
    script, outcome, tokens = CASES[name]
    endpoint = server.endpoint(api=api, timeout_s=60.0)
    (trace,) = send(endpoint, turn("one", script, prompt=prompt_of(api)), make_loop=make_loop)
    assert_failed_as(trace, outcome, tokens)
    assert len(server.replies()) == 1  # sent once, never again


@BOTH
def test_what_never_ends_is_timed_out_and_what_came_is_kept(server, api, make_loop):
    turns = [turn(name, CASES[name][0], prompt=prompt_of(api)) for name in TIMED_OUT]
    traces = send(server.endpoint(api=api, timeout_s=3.0), *turns, make_loop=make_loop)
    assert len(traces) == len(TIMED_OUT) > 3
    for trace in traces:
        assert_failed_as(trace, "timed out", CASES[trace.request][2])


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refusal_names_its_status_and_what_the_server_said(server, status):
    (trace,) = send(server.endpoint(), turn(script={"status": status}))
    assert str(status) in trace.error
    assert "scripted error" in trace.error


def test_a_refused_connection_is_not_connected():
    with refusing_endpoint() as endpoint:
        (trace,) = send(endpoint, Turn("one", "a b", 3))
    assert (trace.outcome, trace.output_tokens) == ("not connected", 0)
    trace.check()


def test_a_server_that_dies_disconnects_what_is_in_flight_and_refuses_what_follows():
    async def run(server):
        began_s = time.monotonic()
        async with Client(server.endpoint(), lambda: time.monotonic() - began_s) as client:
            script = {"gaps_s": [0.001, 60]}
            waiting = [asyncio.create_task(client.send(turn(f"{i}", script), 0.0)) for i in range(5)]
            await asyncio.to_thread(until, lambda: sum(r.output_tokens for r in server.replies()) == 10)
            await asyncio.to_thread(server.kill)
            in_flight = await asyncio.gather(*waiting)
            return in_flight, await client.send(turn("later"), 0.0)

    with FakeServer() as server:
        in_flight, later = run_on(new_event_loop, run(server))
    assert [trace.outcome for trace in in_flight] == ["disconnected"] * 5
    assert [trace.output_tokens for trace in in_flight] == [2] * 5
    assert later.outcome == "not connected"


def test_a_cancelled_request_keeps_what_came_and_leaves_the_server(server):
    async def run():
        began_s = time.monotonic()
        async with Client(server.endpoint(), lambda: time.monotonic() - began_s) as client:
            task = asyncio.create_task(client.send(turn(script={"gaps_s": [0.001, 60]}), 0.0))
            await asyncio.to_thread(until, lambda: any(r.output_tokens == 2 for r in server.replies()))
            # What the server has written is under way: the client's loop must turn once more to have it.
            await asyncio.sleep(0.2)
            task.cancel()
            trace = await task
            await asyncio.to_thread(until, lambda: server.replies()[0].ended is not None)
            return trace

    trace = run_on(new_event_loop, run())
    assert (trace.outcome, trace.output_tokens) == ("cancelled", 2)
    assert server.replies()[0].ended == "client closed"
    trace.check()


def test_requests_beside_faults_are_undisturbed(server):
    """Good streams run while every fault happens around them: their chunks are all there, in order, and none early."""
    sizes = (1, 3, 2)
    good = {"gaps_s": [0.004], "tokens_per_chunk": sizes}
    turns = [turn(f"good {i}", good, tokens=150) for i in range(10)]
    turns += [turn(f"bad {name}", script) for name, (script, _, _) in CASES.items()]
    endpoint = server.endpoint(usage_per_chunk=True, timeout_s=60.0)

    async def run():
        began_s = time.monotonic()
        async with Client(endpoint, lambda: time.monotonic() - began_s) as client:
            slow = [asyncio.create_task(client.send(one, 0.0)) for one in turns if one.turn_id.startswith("good")]
            await asyncio.sleep(0.02)
            hanging = {f"bad {name}" for name in TIMED_OUT}
            bad = [asyncio.create_task(client.send(one, 0.0)) for one in turns if one.turn_id.startswith("bad")]
            good_traces = await asyncio.gather(*slow)
            for one, task in zip(turns[10:], bad):
                if one.turn_id in hanging:
                    task.cancel()
            return good_traces, await asyncio.gather(*bad), await client.send(turn("after"), 0.0), began_s

    good_traces, bad_traces, after, began_s = run_on(new_event_loop, run())
    assert [trace.outcome for trace in good_traces] == ["completed"] * 10
    for trace, (_, outcome, _) in zip(bad_traces, CASES.values()):
        assert trace.outcome == ("cancelled" if outcome == "timed out" else outcome), trace
    assert after.outcome == "completed"
    pairs = paired(good_traces, server.replies())
    counts = count_differences(pairs)
    assert (counts["tokens"], counts["requests_that_differ"]) == (1500, 0)
    delays = deliveries_s(pairs, began_s)
    assert len(delays) == counts["chunks"]
    assert min(delays) > 0  # no chunk is stamped before the server wrote it


def test_a_load_goes_on_through_faults_and_loses_no_request(server):
    """Field case: a client that drops failed responses reports the survivors' speed (sample-apj-sup-sa#181)."""
    scripts = [script for name, (script, _, _) in CASES.items() if name not in TIMED_OUT]
    outcomes = [outcome for name, (_, outcome, _) in CASES.items() if name not in TIMED_OUT]
    sessions, expected = [], []
    for number, (script, outcome) in enumerate(zip(scripts * 2, outcomes * 2)):
        for kind, one, end in (("bad", script, outcome), ("good", {}, "completed")):
            name = f"{kind} {number}"
            sessions.append(Session(name, (turn(name, one),)))
            expected.append(end)
    result = run_load(server.endpoint(timeout_s=60.0), sessions, ClosedLoad(4))
    assert [trace.outcome for trace in result.traces] == expected
    assert result.not_sent == []


FORMS = {
    "plain": {},
    "CRLF": {"newline": "\r\n"},
    "CR": {"newline": "\r"},
    "comments": {"comments": True},
    "bytes one by one": {"split_bytes": 1, "split_gap_s": 0.0002, "token_text": " é☃😀"},
    "half chunks": {"split_bytes": 70, "split_gap_s": 0.002},
    "one burst": {"chunks_per_write": 100},
    "exact content length": {"content_length": "exact"},
    "a length beyond the end": {"content_length": "too long"},
    "no done": {"done_event": False},
    "no finish reason": {"finish_reason": None},
    "empty chunks first": {"empty_chunks": 3},
    "usage in an empty chunk": {"usage": "empty text"},
    "usage in the last chunk": {"usage": "last chunk"},
    "usage that says nothing": {"usage": "zero"},
    "no usage": {"usage": "none"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_every_form_of_a_good_reply_is_counted_whole(server, form, api):
    (trace,) = send(server.endpoint(api=api, timeout_s=60.0), turn(script=FORMS[form], prompt=prompt_of(api)))
    assert (trace.outcome, trace.error) == ("completed", None)
    assert [tokens for tokens in trace.arrival_tokens if tokens] == [1] * TOKENS
    # Chunks without content stay in the trace as arrivals of no token, and the first token is the first content.
    without = trace.arrival_tokens.index(1)
    role = 1 if api == "chat" else 0
    assert without == role + FORMS[form].get("empty_chunks", 0)
    trace.check()


def test_a_burst_of_ten_thousand_tokens_arrives_whole(server):
    (trace,) = send(server.endpoint(timeout_s=120.0), turn(script={"chunks_per_write": 10_000}, tokens=10_000))
    assert (trace.outcome, trace.output_tokens) == ("completed", 10_000)
    assert count_differences(paired([trace], server.replies()))["requests_that_differ"] == 0


def test_thoughts_and_calls_of_tools_are_tokens(server):
    """Field cases: reasoning deltas ignored make TTFT the whole thinking time (guidellm#737, inference-perf#559)."""
    script = {"reasoning_tokens": 2, "tool_call_tokens": 2, "ttft_s": 0.01, "gaps_s": [0.01]}
    prompt = [{"role": "user", "content": "one two"}]
    (trace,) = send(server.endpoint(api="chat", timeout_s=60.0), turn(script=script, prompt=prompt))
    assert (trace.outcome, trace.output_tokens, trace.reasoning_tokens) == ("completed", TOKENS, 2)
    assert trace.arrival_tokens[:3] == [0, 1, 1]
    assert trace.first_token_s == trace.arrivals_s[1]


def test_an_early_end_counts_what_came_not_what_was_asked_for(server):
    """Field case: output_len stuck at max_tokens when a stop token comes early (sglang#24254, sglang#10746)."""
    script = {"output_tokens": 2, "usage": "empty text", "finish_reason": "stop"}
    (trace,) = send(server.endpoint(), turn(script=script))
    assert (trace.output_tokens, trace.wanted_tokens, trace.finish_reason) == (2, TOKENS, "stop")


def test_cached_and_prompt_tokens_are_the_servers(server):
    (trace,) = send(server.endpoint(), turn(script={"cached_tokens": 2}))
    assert (trace.prompt_tokens, trace.cached_tokens) == (3, 2)


def test_the_key_reaches_the_server_and_nothing_else():
    with FakeServer(api_key="sesame") as server:
        (refused,) = send(server.endpoint(api_key="wrong-key"), turn())
        (accepted,) = send(server.endpoint(api_key="sesame"), turn())
    assert (refused.outcome, accepted.outcome) == ("refused", "completed")
    assert "wrong-key" not in repr(refused)
    assert "sesame" not in repr(accepted)


def until(condition):
    """Wait for a condition; what it waits for comes in milliseconds, and a minute is no wait."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)

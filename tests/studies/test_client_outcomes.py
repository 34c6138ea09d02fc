"""Whatever a server does is an outcome, with what had arrived, and the client goes on."""

import asyncio

import pytest
from raw_server import DONE, STREAM_HEAD, asking, delta, finish, sse, text, usage

from wholecurve.studies.serving.client.event_loop import run
from wholecurve.studies.serving.client.outcomes import Fault, fault_of, one_line
from wholecurve.studies.serving.load.turns import Turn
from wholecurve.trace import OUTCOMES, RequestTrace

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
A_WHILE_S = 0.05  # long enough that two writes are two reads; nothing is asserted of it


async def good(peer):
    await peer.stream(text("a"), text("b"), finish(usage=usage(3, 2)), DONE)


def ask(answer, prompt="hi", **endpoint) -> RequestTrace:
    """The trace of one request; then another one, on the same client, has to go well."""

    async def main():
        async with asking(answer, good, **endpoint) as (client, _):
            trace = await client.send(Turn("t", prompt, 4), 0.0)
            after = await client.send(Turn("after", prompt, 4), 0.0)
            assert (after.outcome, after.arrival_tokens) == ("completed", [1, 1, 0])
            return trace

    trace = run(main())
    trace.check()
    assert trace.outcome in OUTCOMES
    assert (trace.error is None) == (trace.outcome == "completed")
    assert trace.error is None or ("\n" not in trace.error and trace.error)
    return trace


def is_(trace: RequestTrace, outcome: str, tokens: int) -> None:
    assert (trace.outcome, trace.output_tokens) == (outcome, tokens), trace.error
    assert trace.completed == (outcome == "completed")


def test_completed():
    trace = ask(good)
    is_(trace, "completed", 2)
    assert (trace.request, trace.wanted_tokens, trace.finish_reason) == ("t", 4, "length")
    assert (trace.prompt_tokens, trace.cached_tokens, trace.token_source) == (3, None, "usage")


def test_a_finish_reason_ends_it_without_done():
    """So transformers serve ends its streams."""

    async def answer(peer):
        await peer.stream(text("a"), finish())

    is_(ask(answer), "completed", 1)


def test_done_ends_it_without_a_finish_reason():
    async def answer(peer):
        await peer.stream(text("a"), DONE)

    trace = ask(answer)
    is_(trace, "completed", 1)
    assert trace.finish_reason is None


def test_done_ends_it_although_the_body_does_not_end():
    """Nor does it hold its place in the load until the request's own limit of an hour."""

    async def answer(peer):
        await peer.stream(text("a"), finish(), DONE, end=False)
        await asyncio.Event().wait()

    async def main():
        async with asking(answer, timeout_s=3600) as (client, _):
            task = asyncio.create_task(client.send(Turn("t", "hi", 4), 0.0))
            done, _ = await asyncio.wait({task}, timeout=60)
            task.cancel()
            return bool(done), await task

    is_over, trace = run(main())
    is_(trace, "completed", 1)
    assert is_over
    assert trace.finished_s == trace.arrivals_s[-1]


def test_the_last_event_may_lack_its_end():
    async def answer(peer):
        await peer.write(HEAD + b"\r\n" + sse(text("a")) + sse(finish()) + b"data: [DONE]")
        peer.writer.close()

    is_(ask(answer), "completed", 1)


def test_empty():
    """vllm#6064: an answer without a token is no success of 0 ms."""

    async def answer(peer):
        await peer.stream(delta(role="assistant"), delta("length"), finish(usage=usage(3, 4)), DONE)

    trace = ask(answer)
    is_(trace, "empty", 0)
    assert trace.ttft_s is None and trace.first_token_s is None


@pytest.mark.parametrize("status", [307, 400, 401, 429, 500, 503])
def test_refused(status):
    async def answer(peer):
        body = b'{"error": {"message": "not\\n now", "type": "x"}}'
        await peer.write(b"HTTP/1.1 %d Oops\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    trace = ask(answer)
    is_(trace, "refused", 0)
    assert trace.error == f"HTTP {status}: not now"


@pytest.mark.parametrize(
    "rest, said",
    [
        (b"Content-Length: 0\r\n\r\n", "Oops"),
        (b"Content-Length: 5\r\n\r\nplain", "plain"),
        (b"Content-Length: 99\r\n\r\nbroken off", "Oops"),
    ],
)
def test_refused_without_a_document(rest, said):
    async def answer(peer):
        await peer.write(b"HTTP/1.1 500 Oops\r\n" + rest)
        peer.writer.close()

    trace = ask(answer)
    is_(trace, "refused", 0)
    assert trace.error == f"HTTP 500: {said}"


def test_an_error_event():
    async def answer(peer):
        await peer.stream(text("a"), {"error": {"message": "engine died"}}, DONE)

    trace = ask(answer)
    is_(trace, "server error", 1)
    assert trace.error == "engine died"


def test_an_error_event_of_its_own_name():
    async def answer(peer):
        await peer.stream(text("a"), b'event: error\ndata: {"message": "engine died"}\n\n')

    is_(ask(answer), "server error", 1)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_end_that_the_server_could_not_help(reason):
    async def answer(peer):
        await peer.stream(text("a"), finish(reason), DONE)

    trace = ask(answer)
    is_(trace, "server error", 1)
    assert (trace.finish_reason, reason in trace.error) == (reason, True)


def test_an_error_as_a_whole_document():
    async def answer(peer):
        body = b'{"error": "engine died"}'
        await peer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    trace = ask(answer)
    is_(trace, "server error", 0)
    assert trace.error == "engine died"


def test_an_answer_that_is_no_stream():
    """A whole answer has no times of tokens: TPOT would be 0, as SGLang's logs had it."""

    async def answer(peer):
        body = b'{"choices": [{"index": 0, "text": "a b c"}]}'
        await peer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    trace = ask(answer)
    is_(trace, "malformed", 0)
    assert "not a stream of events" in trace.error


@pytest.mark.parametrize(
    "garbage", [b"\xff\xfe\x00\x01\n\n", b"data: {\n\n", b"data: {}\n\n", b"data: \xff\xff\n\n", b"<html></html>\n"]
)
def test_malformed(garbage):
    async def answer(peer):
        await peer.stream(text("a"), text("b"), garbage, text("c"), finish(), DONE)

    is_(ask(answer), "malformed", 2)


def test_malformed_framing():
    async def answer(peer):
        await peer.stream(text("a"), end=False)
        await asyncio.sleep(A_WHILE_S)
        await peer.chunk(sse(text("b")))
        await peer.write(b"zz\r\n")
        await asyncio.Event().wait()

    trace = ask(answer)
    is_(trace, "malformed", 2)
    assert trace.error.startswith("no valid HTTP")


@pytest.mark.parametrize("noise", [b"\x00\xffhello\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n"])
def test_no_http(noise):
    async def answer(peer):
        await peer.write(noise)
        await asyncio.Event().wait()

    is_(ask(answer), "malformed", 0)


def test_a_body_that_is_longer_than_it_says():
    async def answer(peer):
        events = sse(text("a")) + sse(text("b"))
        await peer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (len(events) - 20) + events[:20])
        await asyncio.sleep(A_WHILE_S)
        await peer.write(events[20:])

    is_(ask(answer), "malformed", 1)


def test_a_body_that_is_shorter_than_it_says():
    async def answer(peer):
        await peer.write(HEAD + b"Content-Length: 9999\r\n\r\n" + sse(text("a")))
        peer.writer.close()

    is_(ask(answer), "disconnected", 1)


@pytest.mark.parametrize("pause_s", [0, A_WHILE_S])
def test_a_reset_keeps_what_came_before(pause_s):
    async def answer(peer):
        await peer.stream(text("a"), text("b"), end=False)
        await asyncio.sleep(pause_s or 0.001)
        peer.reset()

    trace = ask(answer)
    assert trace.outcome == "disconnected"
    # A reset may overtake what was sent before it, in the kernel.
    assert trace.output_tokens == 2 if pause_s else trace.output_tokens in (0, 2)


def test_bytes_that_come_with_the_end_of_the_connection_are_kept():
    async def answer(peer):
        await peer.stream(text("a"), text("b"), end=False)
        peer.writer.close()

    is_(ask(answer), "disconnected", 2)


def test_closed_within_an_http_chunk():
    async def answer(peer):
        await peer.stream(text("a"), end=False)
        await peer.write(b"99\r\ndata: {")
        peer.writer.close()

    is_(ask(answer), "disconnected", 1)


def test_closed_within_an_event_of_a_body_that_the_close_ends():
    async def answer(peer):
        await peer.write(HEAD + b"\r\n" + sse(text("a")) + b'data: {"choi')
        peer.writer.close()

    trace = ask(answer)
    is_(trace, "disconnected", 1)
    assert trace.error == "the connection was closed in the middle of an event"


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-"])
def test_closed_before_an_answer(begun):
    async def answer(peer):
        await peer.write(begun)
        peer.writer.close()

    is_(ask(answer), "disconnected", 0)


def test_closed_after_the_finish_reason_but_before_the_end():
    """The usage that was to come is lost: this is no answer that ended well."""

    async def answer(peer):
        await peer.stream(text("a"), finish(), end=False)
        peer.writer.close()

    is_(ask(answer), "disconnected", 1)


def test_truncated():
    async def answer(peer):
        await peer.stream(text("a"), text("b"))

    trace = ask(answer)
    is_(trace, "truncated", 2)
    assert "2 chunks" in trace.error


def test_nothing_at_all():
    async def answer(peer):
        await peer.stream()

    is_(ask(answer), "truncated", 0)


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-", STREAM_HEAD])
def test_timed_out(before):
    async def answer(peer):
        await peer.write(before)
        await asyncio.Event().wait()

    is_(ask(answer, timeout_s=0.5), "timed out", 0)


def test_timed_out_in_the_middle():
    async def answer(peer):
        await peer.stream(text("a"), end=False)
        await asyncio.Event().wait()

    is_(ask(answer, timeout_s=0.5), "timed out", 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://no.such.host.invalid/v1"])
def test_not_connected(url):
    async def main():
        async with asking(good, base_url=url) as (client, _):
            return await client.send(Turn("t", "hi", 4), 0.0)

    trace = run(main())
    trace.check()
    is_(trace, "not connected", 0)
    assert "Cannot connect" in trace.error


def cancelled(answer, wait_for_tokens: bool = True) -> RequestTrace:
    async def main():
        arrived = asyncio.Event()

        async def announced(peer):
            await answer(peer)
            arrived.set()
            await asyncio.Event().wait()

        async with asking(announced, good) as (client, _):
            task = asyncio.create_task(client.send(Turn("t", "hi", 4), 0.0))
            await arrived.wait()
            await asyncio.sleep(A_WHILE_S if wait_for_tokens else 0)
            task.cancel()
            trace = await task
            assert not task.cancelled() and task.cancelling() == 0
            assert (await client.send(Turn("after", "hi", 4), 0.0)).outcome == "completed"
            return trace

    trace = run(main())
    trace.check()
    return trace


def test_cancelled_while_tokens_come():
    async def answer(peer):
        await peer.stream(text("a"), text("b"), end=False)

    is_(cancelled(answer), "cancelled", 2)


def test_cancelled_before_an_answer():
    async def answer(peer):
        pass

    is_(cancelled(answer, wait_for_tokens=False), "cancelled", 0)


def test_what_came_but_was_not_read_is_kept():
    """Bytes that came in the same moment as the cancellation: the task was never run between them."""

    async def main():
        async def answer(peer):
            await peer.stream(text("a"), end=False)
            begun.set()
            await asyncio.Event().wait()

        begun = asyncio.Event()
        async with asking(answer) as (client, _):
            task = asyncio.create_task(client.send(Turn("t", "hi", 4), 0.0))
            await begun.wait()
            await asyncio.sleep(A_WHILE_S)
            (connection,) = client._session.connector._acquired
            connection.data_received(b"%x\r\n%s\r\n" % (len(sse(text("b"))), sse(text("b"))))
            task.cancel()
            return await task

    is_(run(main()), "cancelled", 2)


def test_cancelled_after_the_whole_answer():
    """Only the end of its HTTP body was missing: the answer was there."""

    async def answer(peer):
        await peer.stream(text("a"), finish(), DONE, end=False)

    is_(cancelled(answer), "completed", 1)


def test_a_cancelled_request_ends_its_connection():
    """So that the server stops to generate."""

    async def main():
        seen = asyncio.Event()

        async def answer(peer):
            await peer.stream(text("a"), end=False)
            started.set()
            with pytest.raises(ConnectionError):
                while True:
                    await peer.chunk(sse(text("b")))
                    await asyncio.sleep(0.01)
            seen.set()

        started = asyncio.Event()
        async with asking(answer) as (client, _):
            task = asyncio.create_task(client.send(Turn("t", "hi", 4), 0.0))
            await started.wait()
            task.cancel()
            await task
            await asyncio.wait_for(seen.wait(), 30)

    run(main())


def test_faults_leave_others_alone():
    """Nine requests fail, each in its way, while one streams on."""

    async def broken(peer):
        kind = peer.document["prompt"]
        if kind == "good":
            await peer.stream(*[text("a")] * 5, end=False)
            await others_done.wait()
            await peer.chunk(sse(finish()) + DONE)
            await peer.write(b"0\r\n\r\n")
        elif kind == "reset":
            peer.reset()
        elif kind == "close":
            peer.writer.close()
        elif kind == "garbage":
            await peer.stream(b"\xff\xff\n\n")
        else:
            await peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    others_done = asyncio.Event()

    async def main():
        async with asking(broken) as (client, _):
            steady = asyncio.create_task(client.send(Turn("good", "good", 5), 0.0))
            kinds = ["reset", "close", "garbage", "busy"] * 3
            others = await asyncio.gather(*(client.send(Turn(f"{i}", kind, 5), 0.0) for i, kind in enumerate(kinds)))
            others_done.set()
            return [trace.outcome for trace in others], await steady

    outcomes, steady = run(main())
    assert outcomes == ["disconnected", "disconnected", "malformed", "refused"] * 3
    is_(steady, "completed", 5)


def test_an_error_of_this_program_is_no_outcome():
    with pytest.raises(KeyError):
        fault_of(KeyError("a bug"))


def test_messages_are_one_line_without_the_key():
    assert one_line("no\n\n  key sk-secret here", "sk-secret") == "no key *** here"
    assert one_line("a", None) == "a"
    assert len(one_line("x" * 5000, None)) == 300
    assert isinstance(fault_of(TimeoutError()), Fault)


def test_a_body_that_ends_late_does_not_hold_up_the_next_request():
    """The answer is over with [DONE]; its connection is used again once its body has ended."""
    is_asked_again = asyncio.Event()

    async def ends_late(peer):
        await peer.stream(text("a"), finish(), DONE, end=False)
        await is_asked_again.wait()
        await peer.write(b"0\r\n\r\n")

    async def second(peer):
        is_asked_again.set()
        await peer.stream(text("b"), finish(), DONE)

    async def main():
        async with asking(ends_late, second, second) as (client, server):
            traces = [await client.send(Turn(name, "hi", 4), 0.0) for name in ("first", "second")]
            while client._ends:
                await asyncio.sleep(0.001)
            both = (client.send(Turn(name, "hi", 4), 0.0) for name in ("third", "fourth"))
            return [*traces, *await asyncio.gather(*both)], {id(peer.writer) for peer in server.peers}

    traces, connections = run(main())
    for trace in traces:
        is_(trace, "completed", 1)
    assert len(connections) == 2, "both connections are free again"

"""From a turn to its trace: times, counts, connections, pages."""

import asyncio

import pytest
from raw_server import DONE, STREAM_HEAD, asking, delta, finish, sse, text, usage

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.arrivals import StampingHandler
from wholecurve.studies.serving.client.event_loop import run
from wholecurve.studies.serving.load.turns import Turn
from wholecurve.trace import RequestTrace


async def good(peer):
    await peer.stream(text("a"), text("b"), finish(usage=usage(3, 2)), DONE)


def ask(answer, turn=None, **endpoint) -> RequestTrace:
    async def main():
        async with asking(answer, **endpoint) as (client, _):
            return await client.send(turn or Turn("t", "hi", 4), 0.0, "s1")

    trace = run(main())
    trace.check()
    return trace


def test_a_trace_is_in_the_order_of_time():
    trace = ask(good)
    assert trace.scheduled_s <= trace.sent_s <= trace.arrivals_s[0] <= trace.arrivals_s[-1] <= trace.finished_s
    assert (trace.session, trace.request) == ("s1", "t")


def test_chunks_of_one_read_came_at_one_time():
    async def answer(peer):
        body = sse(text("a")) + sse(text("b")) + sse(text("c"))
        await peer.write(STREAM_HEAD + b"%x\r\n%s\r\n" % (len(body), body))
        await asyncio.sleep(0.05)
        await peer.chunk(sse(text("d")) + sse(finish()) + DONE)
        await peer.write(b"0\r\n\r\n")

    trace = ask(answer)
    assert trace.arrival_tokens == [1, 1, 1, 1, 0]
    first, second = set(trace.arrivals_s[:3]), set(trace.arrivals_s[3:])
    assert (len(first) == len(second) == 1 and first < second) or max(first) < min(second)


def test_bytes_are_stamped_when_they_come_and_not_when_they_are_read():
    """The task that reads is kept from running: the times are those of the socket all the same."""

    class Clock:
        """Counts how often it is read; seconds are not what this test is about."""

        now = 0.0

        def __call__(self):
            Clock.now += 1.0
            return Clock.now

    async def main():
        loop = asyncio.get_running_loop()
        handler = StampingHandler(loop, Clock())

        class Transport(asyncio.Transport):
            def is_closing(self):
                return False

        handler.connection_made(Transport())
        handler.set_response_params()
        handler.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab")
        handler.data_received(b"c")
        handler.data_received(b"def")
        arrivals = handler.arrivals
        return [await arrivals.next() for _ in range(4)]

    assert run(main()) == [(1.0, b"ab"), (2.0, b"c"), (3.0, b"def"), None]


def test_answers_on_one_connection_do_not_mix():
    """A connection is free again when an answer has come, which can be before the answer is read."""

    async def main():
        handler = StampingHandler(asyncio.get_running_loop(), lambda: 0.0)
        handler.connection_made(asyncio.Transport())
        answers = []
        for body in (b"ab", b"c"):
            handler.set_response_params()
            handler.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            answers.append(handler.arrivals)
        return [[await arrivals.next() for _ in range(2)] for arrivals in answers]

    assert run(main()) == [[(0.0, b"ab"), None], [(0.0, b"c"), None]]


def test_time_to_first_token_is_that_of_the_first_content():
    """Not of the role, and not only of the answer when there are thoughts (guidellm#737, genai-bench#81)."""

    async def answer(peer):
        await peer.stream(delta(role="assistant", content=""), end=False)
        for part in (delta(reasoning_content="hm"), delta(content="a"), delta("stop")):
            await asyncio.sleep(0.02)
            await peer.chunk(sse(part))
        await peer.chunk(sse({"choices": [], "usage": usage(3, 2)}) + DONE)
        await peer.write(b"0\r\n\r\n")

    trace = ask(answer, Turn("t", [{"role": "user", "content": "hi"}], 4), api="chat")
    assert trace.arrival_tokens == [0, 1, 1, 0, 0]
    assert trace.first_token_s == trace.arrivals_s[1] > trace.arrivals_s[0]
    assert trace.reasoning_tokens == 1


def test_an_answer_of_tool_calls_alone_has_tokens():
    async def answer(peer):
        function = {"name": "look", "arguments": ""}
        await peer.stream(
            delta(role="assistant"),
            delta(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": function}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}]),
            delta("tool_calls"),
            {"choices": [], "usage": usage(3, 9)},
            DONE,
        )

    trace = ask(answer, Turn("t", [{"role": "user", "content": "hi"}], 16), api="chat")
    assert (trace.output_tokens, trace.outcome, trace.finish_reason) == (9, "completed", "tool_calls")
    assert trace.arrival_tokens == [0, 3, 6, 0, 0]


def test_counts_that_usage_tells():
    async def answer(peer):
        details = {"prompt_tokens_details": {"cached_tokens": 2}}
        await peer.stream(text("a"), text("bc"), finish(), {"choices": [], "usage": usage(5, 3, **details)}, DONE)

    trace = ask(answer, Turn("t", [1, 2, 3, 4], 4))
    assert (trace.prompt_tokens, trace.cached_tokens, trace.output_tokens) == (5, 2, 3)
    assert trace.token_source == "usage"


def test_usage_that_says_0_is_named():
    async def answer(peer):
        await peer.stream(text("a"), text("b"), finish(usage=usage(4, 0)), DONE)

    assert ask(answer).token_source == "chunks (usage says 0)"


def test_a_prompt_of_ids_counts_itself_where_nobody_tells():
    async def answer(peer):
        await peer.stream(text("a"), finish(), DONE)

    assert ask(answer, Turn("t", [1, 2, 3, 4], 4)).prompt_tokens == 4
    assert ask(answer, Turn("t", "some text", 4)).prompt_tokens is None


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("words")
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_without_usage_the_whole_text_is_tokenised(tokenizer_folder):
    """As a whole: pieces of a word are one token, wherever the chunks cut it."""

    async def answer(peer):
        await peer.stream(text("alpha be"), text("ta"), text(" c d e f"), finish(), DONE)

    trace = ask(answer, Turn("t", "one two three", 4), tokenizer=tokenizer_folder)
    assert (trace.output_tokens, trace.token_source, trace.prompt_tokens) == (6, "tokenizer", 3)


def test_where_usage_tells_everything_no_thread_holds_up_the_answer(tokenizer_folder, monkeypatch):
    def no_thread(*_):
        raise AssertionError("counted in a thread")

    async def answer(peer):
        await peer.stream(text("a"), text("b"), finish(usage=usage(3, 2)), DONE)

    monkeypatch.setattr("asyncio.to_thread", no_thread)
    trace = ask(answer, Turn("t", "one two three", 4), tokenizer=tokenizer_folder)
    assert (trace.output_tokens, trace.token_source, trace.prompt_tokens) == (2, "usage", 3)


def test_a_cancelled_answer_is_tokenised_as_well(tokenizer_folder):
    async def main():
        arrived = asyncio.Event()

        async def answer(peer):
            await peer.stream(text("alpha beta gamma"), end=False)
            arrived.set()
            await asyncio.Event().wait()

        async with asking(answer, tokenizer=tokenizer_folder) as (client, _):
            task = asyncio.create_task(client.send(Turn("t", "hi", 4), 0.0))
            await arrived.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # also while the text is being counted
            return await task

    trace = run(main())
    assert (trace.outcome, trace.output_tokens, trace.token_source) == ("cancelled", 3, "tokenizer")


def test_a_tokenizer_that_is_none(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json: missing"):
        ask(good, tokenizer=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        ask(good, tokenizer=str(tmp_path))


def test_requests_one_after_another_share_a_connection():
    async def main():
        async with asking(good) as (client, server):
            for number in range(5):
                assert (await client.send(Turn(f"{number}", "hi", 4), 0.0)).outcome == "completed"
            return server.connections, [peer.document["prompt"] for peer in server.peers]

    assert run(main()) == (1, ["hi"] * 5)


def test_a_server_that_closes_after_each_answer_gets_a_connection_for_each_request():
    """llama-server does, although its headers say "Keep-Alive"; every second request was lost."""

    async def answer(peer):
        await good(peer)
        peer.writer.close()

    async def main():
        async with asking(answer, profile="llama.cpp") as (client, server):
            traces = [await client.send(Turn(f"{number}", "hi", 4), 0.0) for number in range(20)]
            return {trace.outcome for trace in traces}, server.connections

    assert run(main()) == ({"completed"}, 20)


def test_connections_are_not_limited():
    """aiohttp's own limit is 100; waiting for a free one would be hidden in TTFT."""
    number = 150

    async def main():
        everybody = asyncio.Event()

        async def answer(peer):
            arrived.append(peer)
            if len(arrived) == number:
                everybody.set()
            await everybody.wait()
            await good(peer)

        arrived = []
        async with asking(answer) as (client, server):
            traces = await asyncio.gather(*(client.send(Turn(f"{i}", "hi", 4), 0.0) for i in range(number)))
            return {trace.outcome for trace in traces}, server.connections

    assert run(main()) == ({"completed"}, number)


def test_a_large_prompt_and_a_large_answer():
    """vllm#39963: with a read buffer of 64 KiB, prompts of 50K tokens took minutes."""
    prompt = list(range(200_000, 250_000))

    async def answer(peer):
        assert peer.document["prompt"] == prompt
        events = b"".join(sse(text("x" * 1000)) for _ in range(10_000))
        await peer.write(STREAM_HEAD)
        await peer.chunk(events)
        await peer.chunk(sse(finish(usage=usage(50_000, 10_000))) + DONE)
        await peer.write(b"0\r\n\r\n")

    trace = ask(answer, Turn("t", prompt, 10_000))
    assert (trace.outcome, trace.output_tokens, trace.prompt_tokens) == ("completed", 10_000, 50_000)


def test_chunks_cut_into_single_bytes():
    async def answer(peer):
        await peer.write(STREAM_HEAD)
        for byte in sse(text("ä€𝄞")) + sse(finish()) + DONE:
            await peer.chunk(bytes([byte]))
        await peer.write(b"0\r\n\r\n")

    assert ask(answer).arrival_tokens == [1, 0]


def test_headers():
    async def main():
        async with asking(good, api_key="sk-1") as (client, server):
            await client.send(Turn("t", "hi", 4), 0.0)
            return server.peers[0].head

    head = run(main()).lower()
    assert head.startswith(b"post /v1/completions http/1.1\r\n")
    assert b"\r\nauthorization: bearer sk-1\r\n" in head
    assert b"\r\naccept-encoding: identity\r\n" in head
    assert b"\r\ncontent-type: application/json\r\n" in head


def test_the_key_is_in_no_record():
    """Not even when a server gives it back."""

    async def answer(peer):
        body = b'{"error": {"message": "Incorrect API key provided: sk-very-secret"}}'
        await peer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    trace = ask(answer, api_key="sk-very-secret")
    assert trace.error == "HTTP 401: Incorrect API key provided: ***"


def page(body: bytes, status: int = 200):
    async def answer(peer):
        await peer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    return answer


def read(answer, call, **endpoint):
    async def main():
        async with asking(answer, **endpoint) as (client, server):
            return await call(client), server.peers[0].head.split()[1]

    return run(main())


def test_pages():
    models = b'{"data": [{"id": "m", "max_model_len": 7}]}'
    assert read(page(models), lambda client: client.models()) == ([{"id": "m", "max_model_len": 7}], b"/v1/models")
    assert read(page(b"a 1\n"), lambda client: client.get_text("/metrics")) == ("a 1\n", b"/metrics")
    assert read(page(b'{"a": 1}'), lambda client: client.get_json("/props")) == ({"a": 1}, b"/props")


@pytest.mark.parametrize(
    "answer, message",
    [
        (page(b'{"error": "no key"}', 401), r"/v1/models: HTTP 401 \(no key\)"),
        (page(b"{"), "/v1/models: not valid JSON"),
        (page(b"[]"), "/v1/models: holds no JSON object"),
        (page(b'{"data": [1]}'), "/v1/models: not a list of models"),
        (page(b"{}"), "/v1/models: not a list of models"),
    ],
)
def test_pages_that_are_none(answer, message):
    with pytest.raises(UserError, match=message):
        read(answer, lambda client: client.models())


def test_a_page_that_nobody_gives():
    async def closing(peer):
        peer.writer.close()

    with pytest.raises(UserError, match=r"/metrics: cannot be read \(the server closed"):
        read(closing, lambda client: client.get_text("/metrics"))
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/health: cannot be read \(Cannot connect"):
        read(page(b""), lambda client: client.get_text("/health"), base_url="http://127.0.0.1:1/v1")


def test_a_turn_that_cannot_be_asked_is_an_error_of_the_user():
    with pytest.raises(UserError, match="a chat needs messages"):
        ask(good, Turn("t", "hi", 4), api="chat")
    with pytest.raises(UserError, match=r"turn t: extra_body\.stream is set by the client"):
        ask(good, Turn("t", "hi", 4, extra_body={"stream": False}))


def test_a_million_events_arrive_once():
    """The whole way from bytes to counts, at the socket's own cuts."""
    from wholecurve.studies.serving.client.counting import count
    from wholecurve.studies.serving.client.reply import Reply

    number, step = 1_000_000, 3_000_017  # bytes of a read; no multiple of an event's
    stream = sse(text(" x")) * number + sse(finish(usage=usage(3, number))) + DONE
    reply = Reply()
    for at in range(0, len(stream), step):
        reply.feed(float(at), stream[at : at + step])
    reply.close(is_whole=True)
    assert reply.fault is None and reply.done_s is not None
    counted = count(reply.chunks, reply.usage)
    assert sum(counted.arrival_tokens) == number == len(reply.arrivals_s) - 1
    assert counted.token_source == "usage"
    assert reply.arrivals_s == sorted(reply.arrivals_s)


def test_the_loop_is_uvloop_where_there_is_one():
    async def main():
        return type(asyncio.get_running_loop()).__module__

    uvloop = pytest.importorskip("uvloop")
    assert run(main()) == uvloop.Loop.__module__


def test_without_uvloop_asyncio_will_do(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert ask(good).outcome == "completed"

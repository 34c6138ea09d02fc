"""One streamed answer and the connection below it, call by call."""

import asyncio

import pytest
from fake_engine import FakeOutput

from wholecurve.engine.server.answer import Choice
from wholecurve.engine.server.api_error import engine_failed
from wholecurve.engine.server.event_stream import CONNECTION, StreamedAnswer
from wholecurve.engine.server.metrics import ServerMetrics


class Loop:
    """Takes everything, runs nothing."""

    def __init__(self):
        self.aborted = []

    def submit(self, submissions):
        pass

    def abort(self, request_id):
        self.aborted.append(request_id)


class Connection:
    """Writes to a list; is busy when told."""

    def __init__(self, written):
        self.written, self.is_busy, self.is_aborted = written, False, False

    def write_part(self, body):
        if not self.is_busy:
            self.written.append(body)
        return not self.is_busy

    def abort(self):
        self.is_aborted = True


class Style:
    def opening(self, choice):
        return b"(%d" % choice.index

    def chunk(self, choice, output):
        return output.text.encode()

    def closing(self, choices):
        return b")"


class Client:
    """What a server gives an application: everything sent lands in `written`, `gate` holds sends back."""

    def __init__(self, max_bytes=100, with_connection=True, choices=1):
        self.written, self.is_complete = [], False
        self.connection = Connection(self.written)
        self.gate, self.gone = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.loop, self.metrics = Loop(), ServerMetrics("tiny")
        self.answer = StreamedAnswer(self.loop, self.metrics, Style(), 0.0, max_bytes)
        self.answer.choices = [Choice(self.answer, index, f"r{index}", [1]) for index in range(choices)]
        self.answer.submit(self.answer.choices)
        scope = {"type": "http", "extensions": {CONNECTION: self.connection} if with_connection else None}
        self.task = asyncio.create_task(self.answer(scope, self.receive, self.send))

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.gate.wait()
        if message["type"] == "http.response.body":
            self.written.append(message["body"])
            self.is_complete = not message.get("more_body", False)

    def take(self, text, finish_reason=None, choice=0):
        self.answer.choices[choice].take(FakeOutput("r", [1], finish_reason, text), 1.0)

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)

    async def open(self):
        for choice in self.answer.choices:
            choice.accepted()
        await self.settle()

    @property
    def text(self):
        return b"".join(self.written).decode()


def run(test):
    asyncio.run(test())


@pytest.mark.parametrize("with_connection", [True, False])
def test_each_step_is_one_write_and_the_end_comes_with_the_last(with_connection):
    async def test():
        client = Client(with_connection=with_connection)
        await client.open()
        for text in ("a", "b"):
            client.take(text)
            await client.settle()
        client.take("c", "stop")
        await client.task
        assert client.written == [b"(0", b"a", b"b", b"c)"] and client.is_complete
        assert client.loop.aborted == []

    run(test)


def test_a_connection_that_becomes_free_does_not_let_newer_text_overtake():
    async def test():
        client = Client()
        await client.open()
        client.connection.is_busy = True
        client.take("a")
        client.connection.is_busy = False
        client.take("b")
        await client.settle()
        client.take("c", "length")
        await client.task
        assert client.text == "(0abc)"

    run(test)


def test_what_piles_up_is_written_as_one():
    async def test():
        client = Client(with_connection=False)
        await client.open()
        client.gate.clear()
        for text in "abcd":
            client.take(text)
            await client.settle()
        client.gate.set()
        await client.settle()
        client.take("e", "stop")
        await client.task
        assert client.written == [b"(0", b"a", b"bcd", b"e)"]

    run(test)


@pytest.mark.parametrize("with_connection", [True, False])
def test_a_client_that_does_not_read_is_cut_off_beyond_the_limit(with_connection):
    async def test():
        client = Client(max_bytes=10, with_connection=with_connection)
        await client.open()
        client.gate.clear()
        client.connection.is_busy = True
        client.take("x")  # the one that the send waits with
        await client.settle()
        for _ in range(10):
            client.take("y")
        assert client.loop.aborted == [] and not client.connection.is_aborted
        client.take("z")
        assert client.loop.aborted == ["r0"] and client.connection.is_aborted == with_connection
        client.take("late")
        client.gate.set()
        await client.task
        assert client.text == "(0x" and not client.is_complete
        assert b'slow_readers_total{model_name="tiny"} 1.0' in client.metrics.page()

    run(test)


def test_an_error_ends_the_stream_after_what_was_written():
    async def test():
        client = Client(choices=2)
        await client.open()
        client.take("a")
        client.take("b", "stop", choice=1)
        client.answer.choices[0].fail(engine_failed())
        await client.task
        assert client.text.startswith("(0(1ab") and client.written[-1].endswith(b"}}\n\n") and client.is_complete
        assert "engine_failed" in client.text and client.loop.aborted == ["r0"]

    run(test)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_client_that_leaves_ends_the_answer(is_open):
    async def test():
        client = Client(choices=2)
        if is_open:
            await client.open()
        client.gone.set()
        await client.task
        assert client.loop.aborted == ["r0", "r1"] and not client.is_complete
        assert b'finished_reason="abort",model_name="tiny"} 2.0' in client.metrics.page()

    run(test)


def test_an_answer_that_is_cancelled_leaves_nothing_in_the_engine():
    async def test():
        client = Client()
        await client.open()
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
        assert client.loop.aborted == ["r0"]

    run(test)

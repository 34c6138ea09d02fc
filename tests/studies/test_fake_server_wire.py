"""The scripted server over a socket: what it sends, what it records, and that it ends."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from wholecurve.errors import UserError
from wholecurve.studies.serving.proof.fake_server import FakeServer, refusing_endpoint
from wholecurve.studies.serving.proof.script import Script
from wholecurve.studies.serving.proof.timetable import Timetable

BODY = {"model": "scripted", "prompt": [1, 2, 3], "max_tokens": 4, "stream": True}


@pytest.fixture(scope="module")
def shared_server():
    with FakeServer(Script(), named={"two": Script(output_tokens=2)}) as server:
        yield server


@pytest.fixture
def server(shared_server):
    shared_server.clear()
    return shared_server


def until(condition):
    """Wait for a condition; what it waits for comes in milliseconds, and a minute is no wait."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def ask(server, path="/completions", **changes):
    return httpx.post(server.base_url + path, json={**BODY, **changes}, timeout=30)


def raw_reply(server, **changes):
    """Every byte that comes back on one connection until it is closed, and the error that ended it, if any."""
    body = json.dumps({**BODY, **changes}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request)
        try:
            while data := client.recv(65536):
                received += data
        except ConnectionResetError as error:
            return received, error
    return received, None


def test_events_end_with_done_and_the_connection_is_kept(server):
    with httpx.Client() as client:
        texts = [client.post(server.base_url + "/completions", json=BODY).text for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].count("data: ") == 5
    assert texts[0].endswith("data: [DONE]\n\n")


def test_the_record_says_what_was_written_and_when(server):
    before = time.monotonic()
    ask(server, script={"ttft_s": 0.01, "gaps_s": [0.005], "tokens_per_chunk": [2, 1]}, label="one")
    after = time.monotonic()
    (reply,) = server.replies()
    assert (reply.label, reply.prompt_tokens, reply.path) == ("one", 3, "/v1/completions")
    assert (reply.ended, reply.output_tokens, reply.chunk_tokens) == ("done", 4, [2, 1, 1])
    assert "prompt" not in reply.body
    moments = [before, reply.first_byte_s, reply.read_s, *reply.written_s]
    assert moments == sorted(moments)
    # The client may have the last bytes before the server has noted that they are gone.
    assert reply.written_s[-1] <= min(after, reply.ended_s)
    # Never early: a scripted moment has passed when its bytes are written. How late they are is measured, not tested.
    assert min(reply.lateness_s()) >= 0
    first = reply.chunk_written_s[0] - reply.read_s
    assert first >= 0.01
    assert all(written <= handed for written, handed in zip(reply.written_s, reply.handed_s))


def test_scripts_are_picked_by_name_by_value_and_in_order(server):
    assert ask(server, script="two").text.count("finish_reason") == 2
    assert ask(server, script={"output_tokens": 3}).text.count("finish_reason") == 3
    refused = ask(server, script="three")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "script 'three' is not there; there are two",
    )
    with FakeServer(Script(output_tokens=1), in_order=[Script(status=503), Script(status=429)]) as ordered:
        assert [ask(ordered).status_code for _ in range(3)] == [503, 429, 200]


def test_replies_that_are_not_streams(server):
    whole = ask(server, stream=False).json()
    assert whole["choices"][0] == {"index": 0, "text": " t0 t1 t2 t3", "finish_reason": "length"}
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    chat = ask(server, "/chat/completions", stream=False, messages=[{"role": "user", "content": "a b"}]).json()
    assert chat["choices"][0]["message"]["content"] == " t0 t1 t2 t3"
    assert chat["usage"]["prompt_tokens"] == 2


def test_models_health_metrics_and_nothing_else(server):
    ask(server)
    assert httpx.get(server.base_url + "/models").json()["data"][0]["id"] == "scripted"
    assert httpx.get(server.root_url + "/health").status_code == 200
    assert "vllm:generation_tokens_total 4" in httpx.get(server.root_url + "/metrics").text
    assert httpx.get(server.base_url + "/embeddings").status_code == 404


def test_a_key_is_asked_for_and_never_recorded():
    with FakeServer(api_key="sesame") as server:
        assert ask(server).status_code == 401
        headers = {"Authorization": "Bearer sesame"}
        assert httpx.post(server.base_url + "/completions", json=BODY, headers=headers).status_code == 200
        (reply,) = server.replies()
        assert reply.bearer
        assert "sesame" not in str(reply) + repr(server.setup)


@pytest.mark.parametrize(
    ("script", "ending", "error"),
    [
        ({"fault": "closes at once"}, b"", None),
        ({"fault": "not http"}, b"This is no reply.\r\n\r\n", None),
        ({"fault": "closes", "after_chunks": 1}, b"\n\n\r\n", None),
        ({"fault": "closes mid-event", "after_chunks": 1}, b"\r\n", None),
        ({"fault": "resets", "after_chunks": 1, "gaps_s": [0.2]}, b"\n\n\r\n", ConnectionResetError),
    ],
)
def test_faults_that_end_the_connection(server, script, ending, error):
    received, raised = raw_reply(server, script=script)
    assert received.endswith(ending) if ending else received == b""
    assert not received.endswith(b"0\r\n\r\n")
    assert type(raised) is (error or type(None))
    assert server.replies()[0].ended == script["fault"]


@pytest.mark.parametrize(("length", "sent_of_promised"), [("too long", "fewer"), ("too short", "more")])
def test_a_wrong_content_length_is_followed_by_the_end_of_the_connection(server, length, sent_of_promised):
    received, _ = raw_reply(server, script={"content_length": length})
    head, _, body = received.partition(b"\r\n\r\n")
    promised = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    assert (len(body) < promised) == (sent_of_promised == "fewer")
    assert len(body) != promised


@pytest.mark.parametrize("fault", ["never answers", "stalls"])
def test_faults_that_keep_the_connection_say_nothing_more(server, fault):
    timeout = httpx.Timeout(30, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.base_url + "/completions", json={**BODY, "script": {"fault": fault}}, timeout=timeout)
    until(lambda: [reply.ended for reply in server.replies()] == [fault])


def test_a_client_that_leaves_is_recorded(server):
    with httpx.stream("POST", server.base_url + "/completions", json={**BODY, "script": {"gaps_s": [60]}}) as reply:
        next(reply.iter_lines())
    until(lambda: server.replies()[0].ended is not None)
    (reply,) = server.replies()
    assert (reply.ended, reply.output_tokens) == ("client closed", 1)


def test_a_slow_reader_makes_the_server_wait_and_loses_nothing(server):
    """32 MB against a reader that takes nothing at first: more than any socket buffer holds."""
    script = {"output_tokens": 2000, "token_text": "x" * 16000}
    with httpx.stream("POST", server.base_url + "/completions", json={**BODY, "script": script}) as reply:
        until(lambda: server.replies()[0].blocked_writes > 0)
        time.sleep(0.3)  # for a server that would not wait to fill its memory
        assert server.replies()[0].output_tokens < 2000
        body = reply.read()
    (log,) = server.replies()
    assert body.count(b'"finish_reason":null') == 1999
    assert (log.output_tokens, log.ended) == (2000, "done")


def test_many_at_once_each_get_their_own_reply(server):
    async def all_of_them():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            bodies = [{**BODY, "max_tokens": 1 + i % 5, "label": str(i)} for i in range(60)]
            posts = [client.post(server.base_url + "/completions", json=body) for body in bodies]
            return await asyncio.gather(*posts)

    replies = asyncio.run(all_of_them())
    assert [reply.text.count("finish_reason") for reply in replies] == [1 + i % 5 for i in range(60)]
    assert {log.label: log.output_tokens for log in server.replies()} == {str(i): 1 + i % 5 for i in range(60)}


def test_a_taken_port_and_a_refusing_endpoint():
    with FakeServer() as first, pytest.raises(UserError, match=r"Address already in use; 0 takes a free port"):
        FakeServer(port=first.port).__enter__()
    with refusing_endpoint() as endpoint, pytest.raises(httpx.ConnectError):
        httpx.get(endpoint.base_url + "/models")


def test_the_process_ends_with_the_block_and_with_its_parent():
    with FakeServer() as server:
        inside = server.pid
    assert not is_running(inside)
    assert server._process.returncode == 0  # by itself, not killed
    program = (
        "from wholecurve.studies.serving.proof.fake_server import FakeServer\n"
        "import time\n"
        "server = FakeServer().__enter__()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        orphan = int(parent.stdout.readline())
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    until(lambda: not is_running(orphan))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_timetable_runs_calls_in_order_and_never_early():
    async def run():
        loop, ran = asyncio.get_running_loop(), []
        timetable, done = Timetable(loop), asyncio.Event()
        start = time.monotonic()
        for delay in (0.02, 0.005, 0.01, 0.005, -1.0):
            due = start + delay
            timetable.at(due, lambda due=due: ran.append((due, time.monotonic())))
        timetable.at(start + 0.03, done.set)
        await asyncio.wait_for(done.wait(), 30)
        timetable.close()
        return ran

    ran = asyncio.run(run())
    assert [due for due, _ in ran] == sorted(due for due, _ in ran)
    assert len(ran) == 5
    assert all(now >= due for due, now in ran)


def test_an_earlier_call_overtakes_one_that_is_armed():
    async def run():
        loop = asyncio.get_running_loop()
        timetable, order, done = Timetable(loop), [], asyncio.Event()
        timetable.at(time.monotonic() + 60, lambda: order.append("late"))
        timetable.at(time.monotonic() + 0.01, lambda: (order.append("soon"), done.set()))
        await asyncio.wait_for(done.wait(), 30)
        timetable.close()
        return order

    assert asyncio.run(run()) == ["soon"]

"""Load, readers that leave or do not read, shutdown and failure, in front of an engine that steps on demand."""

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from live_server import LiveServer

from wholecurve.engine.server.http_server import address_of, bind, is_loopback
from wholecurve.errors import UserError

COMPLETION = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 6}
LONG = COMPLETION | {"max_tokens": 120}


@pytest.fixture
def held():
    """A server whose engine waits for a turn before each step."""
    engine = FakeEngine()
    engine.hold()
    with LiveServer(engine, max_running=2, max_queued=1, max_body_bytes=5000) as live:
        yield live
        engine.release()


def request_bytes(body, path="/v1/completions"):
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*head, "", ""]).encode() + content


def connect(live, receive_buffer=None):
    """A bare socket to a server."""
    client = socket.socket()
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(20)
    client.connect(live._bound.getsockname())
    return client


def read_until(client, text):
    """What a socket gives until `text` is in it."""
    data = bytearray()
    while text not in data[-100_000:]:
        part = client.recv(65536)
        assert part, f"closed before {text!r}: {data[-300:]!r}"
        data += part
    return bytes(data)


def read_to_end(client):
    """Everything until the server closes."""
    data = b""
    while part := client.recv(65536):
        data += part
    return data


def wait_for(condition, timeout_s=20):
    """Poll what no event tells."""
    deadline = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        deadline.wait(0.01)
    raise AssertionError("it did not come to this")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_client_that_leaves_takes_its_requests_with_it(held, stream, steps):
    with connect(held) as client:
        client.sendall(request_bytes(LONG | {"stream": stream, "n": 2}))
        held.engine.wait_until(lambda: len(held.engine.requests) == 2)
        held.engine.allow(steps)
        held.engine.wait_until(lambda: held.engine.num_steps == steps)
    wait_for(lambda: held.service.engine_loop.num_in_flight == 0)
    held.engine.release()  # from the step that waits for its turn
    held.engine.wait_until(lambda: len(held.engine.aborted) == 2)
    assert held.engine.num_steps <= steps + 1 and not held.engine.requests


def test_a_client_that_leaves_does_not_disturb_the_others(held):
    with ThreadPoolExecutor(1) as pool, held.http() as http:
        other = pool.submit(http.post, "/v1/completions", json=COMPLETION)
        held.engine.wait_until(lambda: len(held.engine.requests) == 1)
        with connect(held) as client:
            client.sendall(request_bytes(LONG | {"stream": True}))
            wait_for(lambda: held.service.engine_loop.num_in_flight == 2)
            held.engine.allow(1)
            held.engine.wait_until(lambda: len(held.engine.requests) == 2)
        wait_for(lambda: held.service.engine_loop.num_in_flight == 1)
        held.engine.release()
        assert other.result(20).json()["choices"][0]["text"] == "678901"
        held.engine.wait_until(lambda: len(held.engine.aborted) == 1)


def test_a_stream_is_sent_step_by_step(held):
    """Each step's text arrives while the next step has not begun."""
    with connect(held) as client:
        client.sendall(request_bytes(COMPLETION | {"stream": True}))
        assert b"200 OK" in read_until(client, b"\r\n\r\n"), "headers come before the first token"
        for digit in b"67890":
            held.engine.allow(1)
            assert b'"text":"%c"' % digit in read_until(client, b"\n\n")
        held.engine.allow(1)
        last = read_until(client, b"0\r\n\r\n")
        assert b'"text":"1"' in last and b"[DONE]" in last


def test_more_requests_than_may_wait_get_429(held):
    with ThreadPoolExecutor(3) as pool, held.http() as http:
        waiting = [pool.submit(http.post, "/v1/completions", json=COMPLETION) for _ in range(3)]
        held.engine.allow(1)
        wait_for(lambda: held.service.engine_loop.num_in_flight == 3)
        response = http.post("/v1/completions", json=COMPLETION)
        assert response.status_code == 429 and response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "queue_full"
        assert "1 requests wait already" in response.json()["error"]["message"]
        with pytest.raises(openai.RateLimitError):
            held.client().chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
        assert http.get("/health").status_code == 200, "a full server is well"
        held.engine.release()
        assert [answer.result(20).status_code for answer in waiting] == [200] * 3
        assert http.post("/v1/completions", json=COMPLETION).status_code == 200
        many = http.post("/v1/completions", json=COMPLETION | {"n": 4})
        assert many.status_code == 400 and "4 choices" in many.json()["error"]["message"], "it would never fit"
        assert len(held.engine.added) == 4


def test_a_full_server_and_a_body_too_large_are_answered_before_the_body_is_sent(held):
    with ThreadPoolExecutor(3) as pool, held.http() as http:
        waiting = [pool.submit(http.post, "/v1/completions", json=COMPLETION) for _ in range(3)]
        wait_for(lambda: held.service.engine_loop.num_in_flight == 3)
        head, _, _ = request_bytes(COMPLETION).partition(b"\r\n\r\n")
        with connect(held) as client:
            client.sendall(head + b"\r\n\r\n")
            assert b" 429 " in read_until(client, b"queue_full")
        held.engine.release()
        assert [answer.result(20).status_code for answer in waiting] == [200] * 3
        with connect(held) as client:
            client.sendall(head.replace(b"Content-Length: ", b"Content-Length: 99") + b"\r\n\r\n")
            assert b" 413 " in read_until(client, b"body_too_large")


def test_choices_that_do_not_all_fit_are_refused_as_a_whole(held):
    with ThreadPoolExecutor(1) as pool, held.http() as http:
        first = pool.submit(http.post, "/v1/completions", json=COMPLETION)
        wait_for(lambda: held.service.engine_loop.num_in_flight == 1)
        assert http.post("/v1/completions", json=COMPLETION | {"n": 3}).status_code == 429
        assert held.service.engine_loop.num_in_flight == 1
        held.engine.release()
        assert first.result(20).status_code == 200
        assert http.post("/v1/completions", json=COMPLETION | {"n": 3}).status_code == 200


def test_a_reader_that_stops_reading_is_cut_off_and_the_others_go_on():
    engine = FakeEngine(text_of=lambda token: str(token) * 40_000)
    engine.hold()
    with LiveServer(engine, context_tokens=10**9, max_stream_bytes=200_000) as live, live.http() as http:
        with connect(live, receive_buffer=4096) as slow:
            slow.sendall(request_bytes(COMPLETION | {"stream": True, "max_tokens": 10**8}))
            read_until(slow, b"\r\n\r\n")
            engine.release()
            engine.wait_until(lambda: engine.aborted)
            assert http.post("/v1/completions", json=COMPLETION).status_code == 200
            rest = read_to_end(slow)  # what the kernel held already
            assert b'"text":"6666' in rest and b"[DONE]" not in rest
        assert 'slow_readers_total{model_name="tiny"} 1.0' in http.get("/metrics").text
        assert live.service.engine_loop.num_in_flight == 0


def test_a_reader_that_pauses_gets_everything():
    """What piles up meanwhile is below the limit: it comes in one piece, in order."""
    engine = FakeEngine(text_of=lambda token: str(token) * 40_000)
    with LiveServer(engine, context_tokens=10**9, max_stream_bytes=2**27) as live, connect(live, 2**17) as client:
        client.sendall(request_bytes(COMPLETION | {"stream": True, "max_tokens": 200}))
        engine.wait_until(lambda: engine.num_steps == 200)
        data = read_until(client, b"[DONE]")
    events = data.replace(b"\r\n", b"").split(b'"text":"')[1:]
    assert [int(event[:1]) for event in events] == [(6 + k) % 10 for k in range(200)]


def test_shutdown_refuses_new_requests_and_finishes_running_ones(held):
    with ThreadPoolExecutor(2) as pool, held.http() as http, held.http() as probe:
        assert probe.get("/health").status_code == 200
        running = pool.submit(http.post, "/v1/completions", json=COMPLETION)
        held.engine.wait_until(lambda: held.engine.requests)
        held.stop()
        wait_for(lambda: held.service.engine_loop.is_draining)
        health = probe.get("/health")
        assert health.status_code == 503 and health.json() == {"status": "shutting down"}
        refusal = probe.post("/v1/completions", json=COMPLETION)
        assert refusal.status_code == 503 and refusal.json()["error"]["code"] == "shutting_down"
        held.engine.release()
        assert running.result(20).json()["choices"][0]["text"] == "678901"
    held.join()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{held.url}/health")


@pytest.mark.parametrize("second_signal", [False, True])
def test_shutdown_aborts_what_outlasts_the_grace(second_signal):
    engine = FakeEngine()
    engine.hold()
    with LiveServer(engine, grace_s=1000.0 if second_signal else 0.0) as live, ThreadPoolExecutor(1) as pool:
        with connect(live) as client, live.http() as http:
            client.sendall(request_bytes(LONG | {"stream": True}))
            engine.allow(2)
            read_until(client, b'"text":"7"')
            whole = pool.submit(http.post, "/v1/completions", json=LONG)
            engine.wait_until(lambda: len(engine.added) == 1)
            wait_for(lambda: live.service.engine_loop.num_in_flight == 2)
            live.stop()
            if second_signal:
                live.stop()
            rest = read_to_end(client)
            assert b'"code":"shutting_down"' in rest and b"[DONE]" not in rest
            assert whole.result(20).status_code == 503
        engine.release()
        live.join()


@pytest.mark.parametrize("stream", [True, False])
def test_a_failing_engine_fails_all_requests_and_the_health(held, caplog, stream):
    caplog.set_level(logging.CRITICAL, "wholecurve.server")
    held.engine.error = RuntimeError("out of everything")
    with ThreadPoolExecutor(2) as pool, held.http() as http:
        answers = [pool.submit(http.post, "/v1/completions", json=LONG | {"stream": stream}) for _ in range(2)]
        wait_for(lambda: held.service.engine_loop.num_in_flight == 2)
        held.engine.release()
        for answer in answers:
            response = answer.result(20)
            assert '"code":"engine_failed"' in response.text and "[DONE]" not in response.text
            assert stream or response.status_code == 500
        assert http.get("/health").json() == {"status": "engine failed"}
        assert http.get("/health").status_code == 503
        refusal = http.post("/v1/completions", json=COMPLETION)
        assert refusal.status_code == 503 and "restart" in refusal.json()["error"]["message"]
        assert http.get("/metrics").status_code == 200


def test_the_client_library_raises_the_error_of_a_stream(held, caplog):
    caplog.set_level(logging.CRITICAL, "wholecurve.server")
    stream = held.client().completions.create(**LONG, stream=True)
    held.engine.allow(1)
    assert next(stream).choices[0].text == "6"
    held.engine.error = RuntimeError("out of everything")
    held.engine.allow(1)
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(stream)


def test_an_output_that_cannot_be_written_fails_its_request_alone(caplog):
    caplog.set_level(logging.CRITICAL, "wholecurve.server")
    engine = FakeEngine(text_of=lambda token: "\ud800" if token == 8 else str(token))
    with LiveServer(engine) as live, live.http() as http:
        bad = http.post("/v1/completions", json=COMPLETION | {"stream": True})
        assert '"text":"7"' in bad.text and '"code":"engine_failed"' in bad.text
        good = http.post("/v1/completions", json=COMPLETION | {"stream": True, "prompt": [9], "max_tokens": 4})
        assert "[DONE]" in good.text
        assert live.service.engine_loop.num_in_flight == 0


def test_an_address_that_is_taken_or_wrong_is_one_clear_line():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert address_of(first) == f"http://127.0.0.1:{port}" and is_loopback(first)
        first.listen()
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            bind("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot listen on 203\.0\.113\.1 port 0"):
        bind("203.0.113.1", 0)
    with bind("0.0.0.0", 0) as everywhere:
        assert not is_loopback(everywhere)


def test_a_server_that_cannot_listen_ends_with_the_error():
    live = LiveServer(FakeEngine())
    live._bound.close()
    with pytest.raises(OSError):
        live.server.run(lambda: pytest.fail("it is not ready"))


def test_pipelined_requests_are_answered_in_order(held):
    held.engine.release()
    with connect(held) as client:
        first, second = (COMPLETION | {"stream": True, "prompt": [start]} for start in (1, 4))
        client.sendall(request_bytes(first) + request_bytes(second))
        data = read_until(client, b"[DONE]\n\n\r\n0\r\n\r\n")
        while data.count(b"[DONE]") < 2:
            data += read_until(client, b"0\r\n\r\n")
    digits = [event[:1] for event in data.split(b'"text":"')[1:]]
    assert b"".join(digits) == b"123456" + b"456789"

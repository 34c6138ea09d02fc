"""A server is started, seen to be what was asked for, and ended; whatever is wrong is one line that names it."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.serving.servers import ManagedServer, Needs, parse_server_options, ports
from wholecurve.studies.serving.servers.recipe import ServerOptions, ServerRecipe, listed_model
from wholecurve.studies.serving.servers.settings import ASKED, Setting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TOY = Path(__file__).with_name("toy_server.py")
NEEDS = Needs(sequence_tokens=1024, max_sequences=4, cache_tokens=4096, threads=1)


class Files:
    """A checkpoint of which nothing but its configuration is looked at."""

    name = "toy"

    def __init__(self, folder):
        self._folder = folder
        (folder / "config.json").write_text(json.dumps({"vocab_size": 500}))

    def hf_folder(self):
        return self._folder


class ToyServer(ServerRecipe):
    name = "toy"
    profile = "openai"
    options: ClassVar = ServerOptions
    apis = ("completions",)

    def __init__(self, **config):
        self.config = {"models": ["toy"], **config}
        self.available = True
        self.settings = {}

    def require_available(self):
        if not self.available:
            raise UserError("package toy is not installed")

    def command(self, launch):
        return [sys.executable, str(TOY), str(launch.port), json.dumps(self.config), *launch.options.arguments]

    def read_settings(self, pages, launch, log):
        entry = listed_model(pages, launch.model_name)
        return {
            "version": Setting(log.strip(), "log"),
            "model": Setting(entry["id"], "/v1/models"),
            "max_model_tokens": Setting(entry["max_model_len"], "/v1/models"),
            "prefix_cache": Setting(launch.needs.prefix_cache, ASKED),
            **self.settings,
        }


@pytest.fixture
def serve(tmp_path):
    """A managed toy; whatever a test leaves of it is ended."""
    made = []

    def make(needs=NEEDS, options=None, api_key=None, within_s=60, **config):
        recipe = ToyServer(**config)
        options = options or ServerOptions()
        server = ManagedServer(
            recipe, Files(tmp_path), options, tmp_path / "toy.log", needs,
            label="mine", api_key=api_key, ready_within_s=within_s, grace_s=0.3,
        )  # fmt: skip
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


def test_it_is_ready_verified_described_and_gone(serve, tmp_path):
    options = ServerOptions(environment={"SPECIAL": str(Path.home() / "x")})
    with serve(options=options) as server:
        endpoint = server.endpoint("completions", timeout_s=5.0)
        port = int(endpoint.base_url.removeprefix("http://127.0.0.1:").removesuffix("/v1"))
        assert (endpoint.model, endpoint.api, endpoint.profile, endpoint.timeout_s) == (
            "toy",
            "completions",
            "openai",
            5,
        )
        assert endpoint.tokenizer == str(tmp_path) and server.is_alive() and server.ready_s > 0
        assert not ports.is_free(port)
        described = server.described
        assert (described["server"], described["model"], described["version"]) == ("toy", "toy", "listening")
        assert described["max_model_tokens"] == 4096 and described["sources"]["max_model_tokens"] == "/v1/models"
        assert described["sources"]["prefix_cache"] == "one prompt sent twice, /metrics"
        assert described["environment"]["SPECIAL"] == "~/x" and str(port) in described["command"]
        assert str(Path.home()) not in json.dumps(described)
        assert server.counters().prompt_tokens == 1 + 2 * 288
        assert server.resident_bytes() > 2**20 and server.cpu_seconds() > 0 and len(server.pids()) == 1
        with pytest.raises(UserError, match="contender mine: server toy has no API 'chat'"):
            server.endpoint("chat")
    assert ports.is_free(port) and not server.is_alive() and server.pids() == []
    with pytest.raises(UserError, match="contender mine: its server was not started"):
        server.endpoint()


def test_a_server_that_dies_at_its_start_is_told_with_its_last_words(serve):
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        serve(dies=9, within_s=600).start()
    assert time.monotonic() - started < 300, "it waited for a server that was dead"
    text = str(caught.value)
    assert text.startswith("contender mine: its server ended with code 9: loading weights | out of luck (log: ")
    assert text.count("\n") == 0 and text.endswith("toy.log)")


def test_a_server_that_dies_with_the_first_request_is_told_with_its_last_words(serve):
    with pytest.raises(UserError, match=r"contender mine: its server ended with code 3: .*CUDA error: gone"):
        serve(exits=True).start()


def test_a_server_that_is_never_ready_is_given_up_and_ended(serve):
    server = serve(unhealthy=True, within_s=1.0)
    with pytest.raises(UserError, match=r"contender mine: its server was not ready within 1 s \(.*HTTP 503"):
        server.start()
    assert server.pids() == [] and not server.is_alive()


def test_a_server_that_answers_no_token_is_not_ready(serve):
    with pytest.raises(UserError, match=r"contender mine: no first token: .*HTTP 400 .*no such thing"):
        serve(refuses=400).start()


def test_a_server_that_has_another_model_is_refused(serve):
    server = serve(models=["other", "third"])
    with pytest.raises(
        UserError, match=r"contender mine: .*/v1/models: model 'toy' is not there; it has: other, third"
    ):
        server.start()
    assert server.pids() == []


def test_a_window_that_is_too_short_is_refused(serve):
    with pytest.raises(UserError, match=r"max_model_tokens is 1023 \(/v1/models\), the study needs at least 1024"):
        serve(length=1023).start()
    with serve(length=1024):
        pass


@pytest.mark.parametrize("name", ["dtype", "threads", "model_path"])
def test_a_setting_that_is_another_than_was_asked_for_is_refused(serve, monkeypatch, name):
    server = serve()
    monkeypatch.setattr(server.recipe, "expected", lambda launch: {"model_path": "right"})
    server.recipe.settings = {name: Setting("wrong", "/props")}
    with pytest.raises(UserError, match=rf"contender mine: {name} is wrong \(/props\), the study asked for "):
        server.start()


@pytest.mark.parametrize(("cache", "asked"), [(True, False), (False, True)])
def test_a_prefix_cache_that_is_not_as_asked_for_is_found_by_sending_a_prompt_twice(serve, cache, asked):
    needs = Needs(sequence_tokens=1024, max_sequences=4, cache_tokens=4096, prefix_cache=asked)
    state = "on" if asked else "off"
    with pytest.raises(UserError, match=f"asked for the prefix cache to be {state}; of a prompt sent twice, "):
        serve(needs, cache=cache).start()
    with serve(needs, cache=asked) as server:
        assert server.described["prefix_cache"] is asked


def test_where_nothing_tells_of_the_prefix_cache_the_record_says_so(serve):
    with serve(counters=False) as server:
        assert server.counters() is None
        assert server.described["sources"]["prefix_cache"] == ASKED


def test_a_prompt_shorter_than_a_block_proves_no_cache_to_be_off(serve):
    """A cache of whole blocks finds nothing of a short prompt, though it is on."""
    with serve(Needs(64, 4, 4096, prefix_cache=True), cache=False) as server:
        assert server.described["sources"]["prefix_cache"] == ASKED


def test_what_is_not_installed_is_said_before_anything_starts(serve, tmp_path):
    server = serve()
    server.recipe.available = False
    with pytest.raises(UserError, match=r"^contender mine: package toy is not installed$"):
        server.start()
    assert not (tmp_path / "toy.log").exists()


def test_a_family_that_does_not_listen_is_ended_with_the_server(serve, tmp_path):
    path = tmp_path / "family"
    with serve(family=str(path), deaf=True) as server:
        deadline = time.monotonic() + 30
        while (not path.exists() or len(path.read_text().split()) < 2) and time.monotonic() < deadline:
            time.sleep(0.02)
        pids = server.pids()
        assert {int(pid) for pid in path.read_text().split()} < set(pids) and len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_dead_server_is_noticed_and_started_anew(serve):
    with serve() as server:
        pid, before = server.pids()[0], server.counters()
        os.kill(pid, signal.SIGKILL)
        while server.is_alive():
            time.sleep(0.02)
        with pytest.raises(UserError, match=r"contender mine: its server was killed by SIGKILL"):
            server.counters()
        server.restart()
        assert server.is_alive() and server.counters() == before and server.pids() != [pid]


def test_a_key_reaches_the_endpoint_and_no_record(serve):
    with serve(api_key="sesame") as server:
        assert server.endpoint().api_key == "sesame"
        assert "sesame" not in repr(server.endpoint()) + json.dumps(server.described)


def test_a_port_that_stays_taken_is_said(serve, monkeypatch):
    monkeypatch.setattr("wholecurve.studies.serving.servers.server._PORT_FREE_WITHIN_S", 0.1)
    server = serve()
    server.start()
    monkeypatch.setattr(ports, "is_free", lambda port, host="127.0.0.1": False)
    with pytest.raises(UserError, match=r"contender mine: port \d+ is still taken after its server ended"):
        server.stop()


def test_an_interrupt_while_it_starts_leaves_nothing(serve, monkeypatch):
    server, seen = serve(unhealthy=True), []

    def interrupt(*_):
        while not server.pids():
            time.sleep(0.01)
        seen.extend(server.pids())
        raise KeyboardInterrupt

    monkeypatch.setattr("wholecurve.studies.serving.servers.server.wait_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert seen and server.pids() == [] and not any(Path(f"/proc/{pid}").exists() for pid in seen)


def test_ports_are_free_apart_from_one_another_and_below_outgoing_ones():
    taken = [ports.take_port() for _ in range(20)]
    try:
        assert len(set(taken)) == 20 and all(ports.is_free(port) for port in taken)
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(taken) < first_outgoing or first_outgoing <= 20000
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", taken[0]))
            listener.listen()
            assert not ports.is_free(taken[0])
    finally:
        for port in taken:
            ports.give_back(port)


def test_a_port_is_given_to_one_server_at_a_time(monkeypatch):
    """Some servers need a minute before they listen, and until then their port looks free."""
    port = ports.take_port()
    ports.give_back(port)
    monkeypatch.setattr(ports, "_candidates", lambda: range(port, port + 1))
    assert ports.take_port() == port
    try:
        with pytest.raises(UserError, match="no free port"):
            ports.take_port()
    finally:
        ports.give_back(port)


def test_a_port_that_is_in_use_is_never_given(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(ports, "_candidates", lambda: range(port, port + 1))
        with pytest.raises(UserError, match=f"no free port on 127.0.0.1 between {port} and {port}"):
            ports.take_port()


def test_options_are_named_when_they_are_wrong():
    with pytest.raises(
        UserError, match=r"no server 'sglang'; there is: wholecurve, vllm, llama\.cpp, transformers, running"
    ):
        parse_server_options("sglang", {})
    with pytest.raises(UserError, match=r"unknown setting 'blocks' of server vllm; there is: threads, .*block_size"):
        parse_server_options("vllm", {"blocks": 3})
    with pytest.raises(UserError, match=r"setting 'threads' of server wholecurve is 0: .*greater than or equal to 1"):
        parse_server_options("wholecurve", {"threads": 0})
    assert parse_server_options("wholecurve", {"arguments": ["--x"]}).arguments == ("--x",)

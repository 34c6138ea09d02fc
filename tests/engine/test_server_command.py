"""`wholecurve serve`, from the command line to the last byte."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import httpx
import openai
import pytest
from live_server import tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from wholecurve.engine.server import serve as serve_module
from wholecurve.engine.server.http_server import bind
from wholecurve.engine.server.serve import ServeOptions, build_service, read_template, serve
from wholecurve.errors import UserError

COMMAND = [sys.executable, "-c", "from wholecurve.cli import serving, main; main()", "serve"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of a tiny random Llama with the tokenizer of single characters."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, eos_token_id=7,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def command_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if name != "WHOLECURVE_API_KEY"}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def test_a_server_starts_answers_and_ends_on_sigterm(folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[-1]['content'] }}")
    arguments = [
        str(folder), "--port", "0", "--dtype", "float32", "--threads", "1", "--cache-tokens", "48",
        "--max-batch-tokens", "32", "--max-sequences", "2", "--no-prefix-cache", "--no-overlap",
        "--served-model-name", "mine", "--chat-template", str(template), "--max-queued", "0", "--grace", "20",
        "--speculate", "ngram:2",
    ]  # fmt: skip
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=command_environment(WHOLECURVE_API_KEY="sesame"),
    )  # fmt: skip
    try:
        ready = process.stdout.readline()
        assert ready.startswith("mine: ready on http://127.0.0.1:"), ready + process.stderr.read()
        url = ready.split(" on ")[1].strip()
        client = openai.OpenAI(base_url=url, api_key="sesame", max_retries=0)
        (model,) = client.models.list().data
        assert (model.id, model.max_model_len) == ("mine", 48)
        answer = client.chat.completions.create(
            model="mine", messages=[{"role": "user", "content": "abc"}], max_tokens=4, extra_body={"ignore_eos": True}
        )
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
        with pytest.raises(openai.BadRequestError, match="at most 2"):
            client.completions.create(model="mine", prompt="a", n=3)
        assert httpx.get(url.removesuffix("/v1") + "/metrics").status_code == 401
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out, error) == (0, "", "")
    finally:
        process.kill()


def test_a_port_that_is_taken_is_one_line_and_code_2(folder):
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [*COMMAND, str(folder), "--port", str(port)],
            capture_output=True, text=True, timeout=120, env=command_environment(),
        )  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"wholecurve: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_a_wrong_speculation_is_refused_before_the_model_is_loaded():
    with pytest.raises(UserError, match=r"speculation 'ngram:0': DRAFTS is '0'"):
        build_service(ServeOptions("no such model", speculate="ngram:0"))


def test_a_template_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"missing\.jinja"):
        read_template(tmp_path / "missing.jinja")


def test_options_reach_the_engine_and_the_limits(folder):
    options = ServeOptions(
        str(folder), dtype="float32", cache_tokens=512, max_batch_tokens=40, max_sequences=3, prefix_cache=False,
        overlap=False, max_queued=5, max_body_mib=2, tool_format="json", api_key="k",
    )  # fmt: skip
    service = build_service(options)
    settings = service.settings
    assert (settings.model_name, settings.context_tokens, settings.vocab_size) == ("tiny-llama", 64, 61)
    assert (settings.max_running, settings.max_queued, settings.max_body_bytes) == (3, 5, 2 * 2**20)
    assert (settings.api_key, service.tool_format.arguments_key) == ("k", "parameters")
    stats = service.engine_loop._engine.stats()
    assert (stats.running, stats.blocks_total * 16, stats.prompt_tokens, stats.steps) == (0, 512, 0, 0)
    service.close()


def test_an_empty_key_is_refused():
    """An unset variable in a start script must not open the server."""
    with pytest.raises(UserError, match="API key is empty"):
        serve(ServeOptions("tiny", api_key=""))


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("127.0.0.1", None, False)]
)
def test_an_open_server_without_a_key_warns(monkeypatch, capsys, host, key, warns):
    service = SimpleNamespace(settings=SimpleNamespace(model_name="tiny"))
    monkeypatch.setattr(serve_module, "build_service", lambda options: service)
    monkeypatch.setattr(serve_module.gc, "freeze", lambda: None)
    runs = []
    monkeypatch.setattr(serve_module.HttpServer, "__init__", lambda self, *arguments: runs.append(arguments))
    monkeypatch.setattr(serve_module.HttpServer, "run", lambda self, announce, signals: announce())
    serve(ServeOptions("tiny", host=host, port=0, api_key=key))
    printed = capsys.readouterr()
    assert printed.out.startswith(f"tiny: ready on http://{host}:")
    assert ("no API key" in printed.err) == warns and len(runs) == 1

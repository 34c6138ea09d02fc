"""What each kind of server is started with, and what it is understood to say of itself."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.peers import PEERS
from wholecurve.studies.serving.servers import SERVERS, Launch, ManagedServer, Needs, parse_server_options
from wholecurve.studies.serving.servers.pages import NoAnswer

CONFIG = {
    "model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
CACHE_ROW_BYTES = 2 * 2 * 2 * 16  # layers, keys and values, heads, head size: elements of one token


class Files:
    """A checkpoint in both forms; nothing of it is read but its configuration."""

    name = "small"

    def __init__(self, folder, gguf="model.gguf"):
        self.folder = folder
        self.gguf = folder / gguf if gguf else None
        (folder / "config.json").write_text(json.dumps(CONFIG))

    def hf_folder(self):
        return self.folder

    def f16_gguf(self):
        return self.folder / "f16.gguf"


class FakePages:
    """Paths of a server as it would answer them; what is not there is 404."""

    root, api = "http://host", "/v1"

    def __init__(self, answers):
        self.answers = answers

    def get_json(self, path):
        if path not in self.answers:
            raise NoAnswer(f"{self.root}{path}: HTTP 404", 404)
        return self.answers[path]

    get_text = get_json


@pytest.fixture
def launch(tmp_path, monkeypatch):
    typed = lambda self, gguf, dtype: gguf.with_name(f"{dtype}.gguf")  # noqa: E731
    monkeypatch.setattr(type(PEERS["llama.cpp"]), "typed_gguf", typed)

    def make(server, settings=None, **needs):
        values = {"sequence_tokens": 1000, "max_sequences": 4, "cache_tokens": 3000, "threads": 2, **needs}
        options = parse_server_options(server, settings or {})
        return Launch(Needs(**values), options, Files(tmp_path), "small", 23456)

    return make


def arguments(launch, server):
    """The command as a list, and what follows each argument in it."""
    command = SERVERS[server].command(launch)
    return command, dict(pairwise(command))


SERVED = ("wholecurve", "vllm", "llama.cpp", "transformers")


@pytest.mark.parametrize("server", SERVED)
def test_every_server_gets_port_threads_and_the_plans_own_arguments_last(launch, server):
    given = launch(server, {"threads": 3, "arguments": ["--more", "1"], "environment": {"A": "b"}})
    command, value = arguments(given, server)
    assert (value["--host"], value["--port"]) == ("127.0.0.1", "23456") and command[-2:] == ["--more", "1"]
    assert SERVERS[server].environment(given)["OMP_NUM_THREADS"] == "3"
    assert all(isinstance(part, str) for part in command)


@pytest.mark.parametrize("server", SERVED)
def test_no_key_of_the_user_is_asked_of_clients(launch, monkeypatch, server):
    names = {"wholecurve": "WHOLECURVE_API_KEY", "vllm": "VLLM_API_KEY", "llama.cpp": "LLAMA_API_KEY"}
    if server in names:
        assert SERVERS[server].environment(launch(server))[names[server]] is None


def test_the_prefix_cache_is_as_asked_for(launch):
    words = {
        "wholecurve": ("--prefix-cache", "--no-prefix-cache"),
        "vllm": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "llama.cpp": ("--cache-prompt", "--no-cache-prompt"),
    }
    for server, (on, off) in words.items():
        with_cache, _ = arguments(launch(server, prefix_cache=True), server)
        without, value = arguments(launch(server), server)
        assert on in with_cache and off not in with_cache and off in without and on not in without
    assert value["--cache-ram"] == "0", "llama.cpp would keep prompts of slots that are given to others"


def test_wholecurve(launch):
    command, value = arguments(launch("wholecurve", {"overlap": False, "speculate": "ngram:2"}), "wholecurve")
    wanted = {"--cache-tokens": "3000", "--max-sequences": "4", "--threads": "2", "--dtype": "bfloat16"}
    assert wanted.items() <= value.items() and value["--served-model-name"] == "small"
    assert "--no-overlap" in command and value["--speculate"] == "ngram:2" and "--max-batch-tokens" not in command
    _, value = arguments(launch("wholecurve", {"max_sequences": 9}, max_step_tokens=256), "wholecurve")
    assert (value["--max-batch-tokens"], value["--max-sequences"]) == ("256", "9")


@pytest.mark.parametrize(("dtype", "element_bytes"), [("bfloat16", 2), ("float32", 4)])
def test_vllm_gets_a_cache_in_which_every_sequence_may_waste_its_last_block(launch, dtype, element_bytes):
    command, value = arguments(launch("vllm", dtype=dtype), "vllm")
    blocks = 24 + 4 + 1  # 3,000 tokens in blocks of 128, one for each sequence, one that vLLM keeps
    assert int(value["--kv-cache-memory-bytes"]) == blocks * 128 * CACHE_ROW_BYTES * element_bytes
    assert (value["--max-model-len"], value["--max-num-seqs"], value["--dtype"]) == ("1000", "4", dtype)
    assert "--enable-prompt-tokens-details" in command and "--enforce-eager" not in command
    command, value = arguments(launch("vllm", {"block_size": 32, "compile": "off"}, dtype=dtype), "vllm")
    assert int(value["--kv-cache-memory-bytes"]) == (94 + 4 + 1) * 32 * CACHE_ROW_BYTES * element_bytes
    assert value["--block-size"] == "32" and "--enforce-eager" in command


def test_vllm_gets_as_many_cores_as_threads(launch):
    """By itself it would leave one of them to its scheduler."""
    cores = sorted(os.sched_getaffinity(0))[:1]
    environment = SERVERS["vllm"].environment(launch("vllm", threads=1))
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == ",".join(map(str, cores))
    assert "libiomp5" in environment["LD_PRELOAD"] and environment["PYTHONPATH"] is None
    assert "libiomp5" not in SERVERS["vllm"].environment(launch("vllm", {"openmp": "gnu"}))["LD_PRELOAD"]


def test_llama_slots_hold_the_longest_sequence_each(launch):
    """Without a unified cache, --ctx-size is shared out among the slots."""
    command, value = arguments(launch("llama.cpp"), "llama.cpp")
    assert (value["--parallel"], value["--ctx-size"]) == ("4", str(4 * 1024)) and "--no-kv-unified" in command
    _, value = arguments(launch("llama.cpp", cache_tokens=8192), "llama.cpp")
    assert value["--ctx-size"] == "8192"
    command, value = arguments(launch("llama.cpp", {"unified_cache": True}), "llama.cpp")
    assert value["--ctx-size"] == "3072" and "--kv-unified" in command
    _, value = arguments(launch("llama.cpp", {"unified_cache": True}, cache_tokens=10), "llama.cpp")
    assert value["--ctx-size"] == "1024"


def test_llama_types_and_threads(launch, tmp_path):
    _, value = arguments(launch("llama.cpp", dtype="float32"), "llama.cpp")
    assert (value["--model"], value["--cache-type-k"]) == (str(tmp_path / "float32.gguf"), "f32")
    settings = {"kv_cache": "bf16", "flash_attention": "on", "cache_reuse": 64, "poll": 0, "repack": False}
    command, value = arguments(launch("llama.cpp", settings, prefix_cache=True, max_step_tokens=256), "llama.cpp")
    assert (value["--cache-type-v"], value["--flash-attn"], value["--poll"]) == ("bf16", "on", "0")
    assert (value["--batch-size"], value["--ubatch-size"], value["--cache-reuse"]) == ("256", "256", "64")
    assert (value["--threads"], value["--threads-batch"]) == ("2", "2") and "--no-repack" in command


def test_llama_needs_a_gguf_file(launch, tmp_path):
    given = launch("llama.cpp")
    without = Launch(given.needs, given.options, Files(tmp_path, gguf=None), "small", 1)
    with pytest.raises(UserError, match=r"llama\.cpp reads GGUF checkpoints only; give the study a \.gguf model"):
        SERVERS["llama.cpp"].command(without)


def test_transformers_shares_no_block_when_none_is_ever_full(launch):
    """Its continuous batching reuses full blocks, and has no argument against that."""
    command, value = arguments(launch("transformers"), "transformers")
    assert int(value["--cb-block-size"]) == 1024 > 1000 and "--continuous-batching" in command
    assert int(value["--cb-num-blocks"]) == 3 + 4
    _, value = arguments(launch("transformers", sequence_tokens=1024), "transformers")
    assert int(value["--cb-block-size"]) == 1280, "a block as long as a sequence can become full"
    with pytest.raises(UserError, match="block_size 256: without a prefix cache, a block must hold more than the lon"):
        arguments(launch("transformers", {"block_size": 256}), "transformers")
    _, value = arguments(launch("transformers", prefix_cache=True), "transformers")
    assert (value["--cb-block-size"], value["--cb-num-blocks"]) == ("256", str(12 + 4))
    with pytest.raises(UserError, match="has a prefix cache with continuous_batching alone"):
        arguments(launch("transformers", {"continuous_batching": False}, prefix_cache=True), "transformers")


def test_what_wholecurve_says_of_itself(launch):
    models = {"data": [{"id": "small", "max_model_len": 3000}]}
    page = (
        'wholecurve:engine_info{block_size="16",dtype="bfloat16",model_name="x",prefix_cache="False",threads="2"} 1.0\n'
    )
    pages = FakePages({"/v1/models": models, "/metrics": "# HELP\n" + page})
    settings = SERVERS["wholecurve"].read_settings(pages, launch("wholecurve"), "")
    assert (settings["max_model_tokens"].value, settings["max_model_tokens"].source) == (3000, "/v1/models")
    told = {name: found.value for name, found in settings.items() if found.source == "/metrics"}
    assert told == {"block_size": 16, "dtype": "bfloat16", "prefix_cache": False, "threads": 2}


VLLM_LOG = (
    "(EngineCore pid=9) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    "dtype=torch.bfloat16, max_seq_len=1024, kv_cache_dtype=auto, "
    "compilation_config={'mode': <CompilationMode.DYNAMO_TRACE_ONCE: 2>, 'cache_dir': '', 'backend': 'inductor'}\n"
    "(EngineCore pid=9) INFO [ompmultiprocessing.py:185] \tlocal_rank=0, core ids=[0, 1]\n"
)
VLLM_PAGE = (
    'vllm:cache_config_info{block_size="128",cache_dtype="auto",'
    'enable_prefix_caching="False",num_gpu_blocks="73"} 1.0\n'
)


def test_what_vllm_says_of_itself(launch, tmp_path):
    entry = {"id": "small", "root": str(tmp_path), "max_model_len": 1000}
    answers = {"/v1/models": {"data": [entry]}, "/version": {"version": "0.32.0"}, "/metrics": VLLM_PAGE}
    settings = SERVERS["vllm"].read_settings(FakePages(answers), launch("vllm"), VLLM_LOG)
    values = {name: setting.value for name, setting in settings.items()}
    assert values == {
        "version": "0.32.0", "model": "small", "model_path": str(tmp_path), "max_model_tokens": 1000,
        "max_sequences": 4, "dtype": "bfloat16", "compilation": "DYNAMO_TRACE_ONCE, inductor", "threads": 2,
        "block_size": 128, "cache_tokens": 73 * 128, "prefix_cache": False, "kv_cache_dtype": "auto",
    }  # fmt: skip
    assert (settings["prefix_cache"].source, settings["dtype"].source) == ("/metrics", "log")
    assert SERVERS["vllm"].expected(launch("vllm")) == {"model_path": str(tmp_path)}
    answers["/metrics"] = ""
    assert "prefix_cache" not in SERVERS["vllm"].read_settings(FakePages(answers), launch("vllm"), "")


def test_what_llama_says_of_itself(launch, tmp_path):
    props = {
        "default_generation_settings": {"n_ctx": 1024}, "total_slots": 4, "model_alias": "small", "model_path": "/x",
        "model_ftype": "BF16", "build_info": "b1",
    }  # fmt: skip
    answers = {"/v1/models": {"data": [{"id": "small", "meta": {"n_vocab": 500}}]}, "/props": props}
    log = "0.00.242.884 I cmn init: llama threadpool init, n_threads = 2\n"
    settings = SERVERS["llama.cpp"].read_settings(FakePages(answers), launch("llama.cpp"), log)
    values = {name: setting.value for name, setting in settings.items()}
    assert (values["max_model_tokens"], values["cache_tokens"], values["max_sequences"]) == (1024, 4096, 4)
    assert (values["dtype"], values["threads"], settings["threads"].source) == ("bfloat16", 2, "log")
    assert values["version"].endswith("(b1)") and values["vocab_size"] == 500
    unified = launch("llama.cpp", {"unified_cache": True})
    settings = SERVERS["llama.cpp"].read_settings(FakePages(answers), unified, "")
    assert settings["cache_tokens"].value == 1024 and settings["threads"].source == "command line"
    wanted = {"model_path": str(tmp_path / "bfloat16.gguf"), "vocab_size": 500}
    assert SERVERS["llama.cpp"].expected(launch("llama.cpp")) == wanted


def running(url="http://host:1/v1", **settings):
    options = parse_server_options("running", {"url": url, **settings})
    return SERVERS["running"], Launch(Needs(1000, 4, 4000), options, None, settings.get("model", "only"), 0)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://host:1/v1", ("http://host:1", "/v1")),
        ("https://host/openai/v1/", ("https://host/openai", "/v1")),
        ("https://host/serverless", ("https://host/serverless", "")),
    ],
)
def test_where_the_api_of_a_running_server_is(url, parts):
    recipe, launch = running(url)
    assert recipe.address(launch.options) == parts


def test_a_running_server_is_asked_what_it_has():
    recipe, launch = running()
    one = FakePages({"/v1/models": {"data": [{"id": "only", "context_length": 2000}]}, "/version": {"version": "9"}})
    assert recipe.model_name(None, launch.options, one) == "only"
    settings = recipe.read_settings(one, launch, "")
    assert {name: setting.value for name, setting in settings.items()} == {
        "model": "only", "max_model_tokens": 2000, "version": "9",
    }  # fmt: skip
    two = FakePages({"/v1/models": {"data": [{"id": "a"}, {"id": "b"}]}})
    with pytest.raises(UserError, match="http://host/v1/models has a, b: say which is meant"):
        recipe.model_name(None, launch.options, two)
    with pytest.raises(UserError, match="model 'only' is not there; it has: a, b"):
        recipe.read_settings(two, launch, "")


def test_an_address_without_its_path_is_told_where_most_have_it():
    recipe, launch = running("http://host")
    pages = FakePages({})
    pages.api = ""
    with pytest.raises(UserError, match="most servers have their API at http://host/v1"):
        recipe.model_name(None, launch.options, pages)


def test_a_running_server_without_a_list_is_taken_at_the_plans_word():
    recipe, launch = running(model="given")
    settings = recipe.read_settings(FakePages({}), launch, "")
    assert (settings["model"].value, settings["model"].source) == ("given", "plan")


def test_a_running_server_that_is_vllm_tells_of_its_cache():
    recipe, launch = running()
    pages = FakePages({"/v1/models": {"data": [{"id": "only"}]}, "/metrics": VLLM_PAGE})
    assert recipe.read_settings(pages, launch, "")["prefix_cache"].value is False


def test_a_password_in_an_address_is_refused_before_it_is_recorded():
    recipe, launch = running("http://me:secret@host/v1")
    with pytest.raises(UserError, match=r"^url: it holds a user or a password") as caught:
        recipe.address(launch.options)
    assert "secret" not in str(caught.value)


def test_an_address_where_nothing_answers_is_named(tmp_path):
    options = parse_server_options("running", {"url": "http://127.0.0.1:9/v1"})
    server = ManagedServer(SERVERS["running"], None, options, tmp_path / "log", Needs(10, 1, 10), label="far")
    with pytest.raises(UserError, match=r"^contender far: http://127\.0\.0\.1:9/v1/models: .*refused"):
        server.start()
    assert not Path(tmp_path / "log").exists()


@pytest.mark.parametrize("server", ["vllm", "llama.cpp"])
def test_a_peer_that_is_not_set_up_is_named(server, tmp_path, monkeypatch):
    monkeypatch.setenv("WHOLECURVE_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=rf"peer {server}: not set up: run `wholecurve peers setup {server}`"):
        SERVERS[server].require_available()


def test_packages_that_are_missing_are_named(monkeypatch):
    for server in ("wholecurve", "transformers"):
        monkeypatch.setattr(f"wholecurve.studies.serving.servers.{server}.find_spec", lambda name: None)
        with pytest.raises(UserError, match="package torch is not installed: pip install "):
            SERVERS[server].require_available()

"""`wholecurve serve` as a contender: a tiny random model from its start to its end."""

import sys
from pathlib import Path

import openai
import pytest

from wholecurve.errors import UserError
from wholecurve.models.resolve import resolve
from wholecurve.studies.serving.servers import SERVERS, ManagedServer, Needs, parse_server_options

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def served_folder(tiny_folder, tmp_path_factory):
    """The tiny model of all study tests with a tokenizer of single characters beside it."""
    import shutil

    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_folder, folder)
    backend = Tokenizer(models.BPE({chr(97 + i): i for i in range(26)} | {"<end>": 26}, []))
    backend.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>").save_pretrained(folder)
    return folder


def managed(folder, log, settings=None, **needs):
    options = parse_server_options("wholecurve", settings or {})
    wanted = Needs(**{"sequence_tokens": 400, "max_sequences": 2, "cache_tokens": 1024, "dtype": "float32", **needs})
    return ManagedServer(SERVERS["wholecurve"], resolve(str(folder)), options, log, wanted, label="ours")


def test_it_serves_and_nothing_is_left(served_folder, tmp_path):
    with managed(served_folder, tmp_path / "log", prefix_cache=True) as server:
        endpoint, pids = server.endpoint("completions"), server.pids()
        before = server.counters()
        client = openai.OpenAI(base_url=endpoint.base_url, api_key="none", max_retries=0)
        answer = client.completions.create(
            model=endpoint.model, prompt=[5] * 33, max_tokens=7, temperature=0, extra_body={"ignore_eos": True}
        )
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (33, 7)
        since = server.counters().since(before)
        assert (since.prompt_tokens, since.generated_tokens, since.prefix_hit_tokens) == (33, 7, 0)
        described = server.described
        assert described["prefix_cache"] is True and described["max_model_tokens"] == 512
        assert described["sources"]["prefix_cache"] == "one prompt sent twice, /metrics"
        told = ("dtype", "device", "max_sequences", "max_batch_tokens", "cache_tokens", "block_size", "speculation")
        assert [described[name] for name in told] == ["float32", "cpu", 2, 2048, 1024, 16, "none"]
        assert {described["sources"][name] for name in told} == {"/metrics"} and described["overlap"] is False
    assert pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_argument_that_turns_the_cache_on_behind_the_plan_is_found(served_folder, tmp_path):
    server = managed(served_folder, tmp_path / "log", {"arguments": ["--prefix-cache"]})
    with pytest.raises(UserError, match=r"contender ours: prefix_cache is True .*the study asked for False"):
        server.start()


def test_an_argument_that_it_does_not_know_is_told(served_folder, tmp_path):
    server = managed(served_folder, tmp_path / "log", {"arguments": ["--no-such-thing"]})
    with pytest.raises(UserError, match=r"contender ours: its server ended with code 2: .*No such option"):
        server.start()

"""Bodies in the dialect of each server, and keys that stay where they belong."""

import orjson
import pytest

from wholecurve.engine.server.chat_protocol import ChatRequest
from wholecurve.engine.server.protocol import CompletionRequest, parse_request
from wholecurve.errors import UserError
from wholecurve.studies.serving.client.client import Client
from wholecurve.studies.serving.client.credentials import api_key_from
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.client.profiles import PROFILES, profile_of
from wholecurve.studies.serving.client.request_body import request_body
from wholecurve.studies.serving.load.turns import Turn

MESSAGES = [{"role": "user", "content": "hi"}]
IDS = Turn("t", [5, 6, 7], 9)


def endpoint(profile="openai", **fields) -> Endpoint:
    return Endpoint("http://127.0.0.1:8000/v1", "m", profile=profile, **fields)


def body(turn: Turn, to: Endpoint) -> dict:
    return orjson.loads(request_body(to, profile_of(to.profile), turn))


def test_a_body_is_whole():
    assert body(IDS, endpoint("vllm")) == {
        "model": "m",
        "prompt": [5, 6, 7],
        "stream": True,
        "max_tokens": 9,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_a_chat_is_whole():
    assert body(Turn("t", MESSAGES, 9), endpoint(api="chat")) == {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "max_completion_tokens": 9,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "profile, fields",
    [
        ("openai", {}),
        ("wholecurve", {"ignore_eos": True}),
        ("vllm", {"ignore_eos": True}),
        ("sglang", {"ignore_eos": True}),
        ("dynamo", {"ignore_eos": True}),
        ("tensorrt-llm", {"ignore_eos": True}),
        ("llama.cpp", {"ignore_eos": True}),
        ("friendli", {"min_tokens": 9}),
        ("together", {}),
    ],
)
def test_fields_that_force_a_length(profile, fields):
    """dynamo#3731, #723: without them 382 of 5,000 tokens came."""
    turn = Turn("t", "hi", 9)
    forced = body(turn, endpoint(profile))
    free = body(turn, endpoint(profile, ignore_eos=False))
    assert {name: forced[name] for name in forced.keys() - free.keys()} == fields
    assert forced["max_tokens"] == free["max_tokens"] == 9


def test_transformers_takes_a_generation_configuration():
    forced = body(Turn("t", "hi", 9), endpoint("transformers"))
    config = orjson.loads(forced["generation_config"])
    assert (config["max_new_tokens"], config["eos_token_id"], config["do_sample"]) == (9, -1, False)
    assert "stream_options" not in forced


def test_counts_per_chunk_are_asked_for_where_the_server_knows_them():
    asked = {
        name
        for name in PROFILES
        if body(Turn("t", "hi", 9), endpoint(name, usage_per_chunk=True))
        .get("stream_options", {})
        .get("continuous_usage_stats")
    }
    assert asked == {"wholecurve", "vllm", "sglang", "tensorrt-llm"}
    assert body(IDS, endpoint("vllm"))["stream_options"] == {"include_usage": True}


def test_token_ids_go_where_the_server_takes_them():
    assert {name: profile.ids_field for name, profile in PROFILES.items() if profile.ids_field != "prompt"} == {
        "transformers": None,
        "together": None,
        "friendli": "tokens",
    }
    assert body(IDS, endpoint("friendli"))["tokens"] == [5, 6, 7]
    assert body(Turn("t", "hi", 9), endpoint("friendli"))["prompt"] == "hi"


@pytest.mark.parametrize(
    "turn, to, message",
    [
        (IDS, endpoint("together"), "turn t: servers of profile together take no token ids; make the prompt a text"),
        (IDS, endpoint(api="chat"), "turn t: a chat needs messages; its prompt is a list of token ids"),
        (Turn("t", "hi", 9), endpoint(api="chat"), "turn t: a chat needs messages; its prompt is a text"),
        (
            Turn("t", MESSAGES, 9),
            endpoint(),
            "turn t: completions need token ids or a text; its prompt is a list of messages",
        ),
    ],
)
def test_a_prompt_that_the_endpoint_cannot_take(turn, to, message):
    with pytest.raises(UserError) as caught:
        body(turn, to)
    assert str(caught.value) == message


def test_extra_fields_replace_those_before_them():
    to = endpoint("vllm", extra_body={"temperature": 0.5, "top_k": 3, "ignore_eos": None})
    assert body(IDS, to)["temperature"] == 0.5
    turned = body(Turn("t", "hi", 9, extra_body={"top_k": 4, "tools": []}), to)
    assert (turned["top_k"], turned["tools"]) == (4, [])
    assert "ignore_eos" not in turned


@pytest.mark.parametrize("name", ["model", "prompt", "messages", "stream", "n"])
def test_what_the_client_rests_on_cannot_be_replaced(name):
    with pytest.raises(UserError, match=rf"extra_body\.{name} is set by the client"):
        Client(endpoint(extra_body={name: 1}), lambda: 0.0)


@pytest.mark.parametrize("usage_per_chunk", [False, True])
def test_our_own_server_takes_the_bodies(usage_per_chunk):
    """It refuses unknown fields, so a field that it does not know would fail each request."""
    to = endpoint("wholecurve", usage_per_chunk=usage_per_chunk)
    asked = parse_request(CompletionRequest, request_body(to, profile_of("wholecurve"), IDS))
    assert (asked.prompt, asked.max_tokens, asked.ignore_eos, asked.temperature) == ([[5, 6, 7]], 9, True, 0)
    assert asked.stream_options.continuous_usage_stats == usage_per_chunk
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    chat = endpoint("wholecurve", api="chat", usage_per_chunk=usage_per_chunk)
    turn = Turn("t", MESSAGES, 9, extra_body={"tools": tools})
    asked = parse_request(ChatRequest, request_body(chat, profile_of("wholecurve"), turn))
    assert (asked.max_tokens, asked.ignore_eos, asked.tools[0].function.name) == (9, True, "look")


def test_an_unknown_profile_lists_those_there_are():
    with pytest.raises(UserError, match=r"profile 'vllm2' is not known; choose from openai, wholecurve, vllm"):
        profile_of("vllm2")


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_KEY", " sk-1 ")
    assert api_key_from("SOME_KEY") == "sk-1"


@pytest.mark.parametrize("value", [None, "", "  ", "a b", "ä", "a\nb"])
def test_keys_that_are_none_say_which_variable(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("SOME_KEY", raising=False)
    else:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(UserError, match="environment variable SOME_KEY") as caught:
        api_key_from("SOME_KEY")
    assert not value or not value.strip() or value not in str(caught.value)


def test_an_endpoint_does_not_show_its_key():
    assert "sk-1" not in repr(endpoint(api_key="sk-1"))


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000/v1", "ftp://a/v1", "http:///v1", "", "http://[::1/v1", "http://a:port/v1", "http://a:99999/v1"],
)
def test_a_url_that_is_none(url):
    with pytest.raises(UserError, match="base_url"):
        Client(Endpoint(url, "m"), lambda: 0.0)


def test_a_url_with_a_key_in_it_is_refused_and_not_shown():
    with pytest.raises(UserError, match="use api_key") as caught:
        Client(Endpoint("https://user:sk-1@host/v1", "m"), lambda: 0.0)
    assert "sk-1" not in str(caught.value)

"""The server over HTTP, in front of an engine without a model: what goes out, what is refused, what is counted."""

import json
import socket

import openai
import pytest
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, tiny_tokenizer
from prometheus_client.parser import text_string_to_metric_families

COMPLETION = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server():
    with LiveServer(FakeEngine()) as live:
        yield live


@pytest.fixture(scope="module")
def http(server):
    with server.http() as client:
        yield client


def digits(start, count):
    """What the fake engine answers to a prompt whose ids have this sum."""
    return "".join(str((start + k) % 10) for k in range(count))


def events(response):
    """The data of a stream, [DONE] checked and left out."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refused(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


def test_a_completion_is_one_document(http):
    body = http.post("/v1/completions", json=COMPLETION).json()
    assert body["object"] == "text_completion" and body["model"] == "tiny" and body["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "6789", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert body["choices"] == [choice]
    assert body["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip


def test_a_stream_has_one_event_per_step_and_ends_with_done(http):
    chunks = events(http.post("/v1/completions", json=COMPLETION | {"stream": True}))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == list("6789")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1 and all("usage" not in chunk for chunk in chunks)


def test_usage_comes_last_and_only_when_asked_for(http):
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(http.post("/v1/completions", json=COMPLETION | fields))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4 and last["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(("path", "base"), [("completions", COMPLETION), ("chat/completions", CHAT)])
def test_every_chunk_can_carry_the_counts_of_its_choice(http, path, base):
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stream": True, "stream_options": options, "n": 2}
    *chunks, last = events(http.post(f"/v1/{path}", json=base | fields))
    for index in (0, 1):
        counted = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in counted]
        assert sorted(set(counts) - {0}) == list(range(1, base["max_tokens"] + 1)) and counts == sorted(counts)
        assert {usage["prompt_tokens"] for usage in counted} == {last["usage"]["prompt_tokens"]}
    assert last["usage"]["completion_tokens"] == 2 * base["max_tokens"]


def test_a_chat_stream_has_a_role_deltas_a_finish_and_usage(http):
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(http.post("/v1/chat/completions", json=CHAT | fields))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *deltas, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in deltas) and len(deltas) == 3
    assert finish["choices"][0]["delta"] == {} and finish["choices"][0]["finish_reason"] == "length"
    prompt = tiny_tokenizer().encode("user:hi\nassistant:", add_special_tokens=False)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in deltas) == digits(sum(prompt), 3)
    assert usage["usage"]["prompt_tokens"] == len(prompt)


def test_a_chat_is_one_document(http):
    body = http.post("/v1/chat/completions", json=CHAT).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    message = body["choices"][0]["message"]
    assert message["role"] == "assistant" and len(message["content"]) == 3 and "tool_calls" not in message


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_choices_are_numbered_and_counted(http, stream):
    fields = {"prompt": [[1], [5, 0]], "n": 2, "max_tokens": 3, "stream": stream, "echo": False}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    response = http.post("/v1/completions", json=COMPLETION | fields)
    texts = dict.fromkeys(range(4), "")
    documents = events(response) if stream else [response.json()]
    for document in documents:
        for choice in document["choices"]:
            texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == ["123", "123", "567", "567"]
    usage = documents[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)


def test_choices_have_seeds_of_their_own(server, http):
    http.post("/v1/completions", json=COMPLETION | {"n": 3, "seed": 5})
    assert [request.params.seed for request in server.engine.added[-3:]] == [5, 6, 7]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_gives_the_prompt_before_the_answer(http, stream):
    fields = {"prompt": "ab", "echo": True, "max_tokens": 2, "stream": stream}
    response = http.post("/v1/completions", json=COMPLETION | fields)
    if stream:
        text = "".join(chunk["choices"][0]["text"] for chunk in events(response))
    else:
        text = response.json()["choices"][0]["text"]
    assert text == "ab12"
    ids = http.post("/v1/completions", json=COMPLETION | {"prompt": [0, 1, 7], "echo": True, "max_tokens": 1})
    assert ids.json()["choices"][0]["text"] == "ab<|im_end|>8"


def test_token_ids_are_returned_on_demand(http):
    body = http.post("/v1/completions", json=COMPLETION | {"return_token_ids": True}).json()
    assert body["choices"][0]["token_ids"] == [6, 7, 8, 9] and body["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    for path, base in (("completions", COMPLETION), ("chat/completions", CHAT)):
        chunks = events(http.post(f"/v1/{path}", json=base | {"return_token_ids": True, "stream": True}))
        ids = [choice.get("token_ids", []) for chunk in chunks for choice in chunk["choices"]]
        assert len([token for part in ids for token in part]) == base["max_tokens"]


def test_priority_and_salt_reach_the_engine(server, http):
    http.post("/v1/completions", json=COMPLETION | {"priority": -3, "cache_salt": "mine"})
    assert (server.engine.added[-1].priority, server.engine.added[-1].cache_salt) == (-3, "mine")


def test_a_chat_without_a_limit_may_fill_the_context(server, http):
    fields = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    body = http.post("/v1/chat/completions", json=fields).json()
    assert body["usage"]["total_tokens"] == 128


def test_models_are_listed(http):
    (model,) = http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 128)
    assert http.get("/v1/models/tiny").json() == model
    assert refused(http.get("/v1/models/other"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "base"), [("completions", COMPLETION), ("chat/completions", CHAT)])
def test_another_model_is_not_here(http, path, base):
    error = refused(http.post(f"/v1/{path}", json=base | {"model": "gpt"}), 404)
    assert error["param"] == "model" and "'gpt'" in error["message"] and "'tiny'" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_the_clients_error(http, stream):
    error = refused(http.post("/v1/completions", json=COMPLETION | {"prompt": [1, 66], "stream": stream}), 400)
    assert error["message"].endswith("token ids must lie between 0 and 60")
    with LiveServer(FakeEngine(), vocab_size=100) as live, live.http() as client:
        both = {"prompt": [[1], [66]], "stream": stream}
        assert refused(client.post("/v1/completions", json=COMPLETION | both), 400)["message"] == "token 66 is refused"
        live.engine.wait_until(lambda: live.engine.aborted)
        assert live.engine.num_steps == 0, "the choice that was fine does not run alone"
        broken = client.post("/v1/completions", json=COMPLETION | {"prompt": [67], "stream": stream})
        assert refused(broken, 500)["type"] == "server_error"
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_go_on_is_an_error(http, stream):
    response = http.post("/v1/completions", json=COMPLETION | {"prompt": [60], "stream": stream})
    if stream:
        assert '"text":"1"' in response.text and '"code":"no_token"' in response.text and "[DONE]" not in response.text
    else:
        assert refused(response, 400)["code"] == "no_token"


def test_a_grammar_is_compiled_before_the_engine_gets_the_request(server, http):
    count = len(server.engine.added)
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"description": "token 66"}}}
    error = refused(http.post("/v1/chat/completions", json=CHAT | {"response_format": form}), 400)
    assert "token 66 is refused" in error["message"] and len(server.engine.added) == count


def test_prompts_that_are_too_long_are_refused_with_numbers(http):
    error = refused(http.post("/v1/completions", json=COMPLETION | {"prompt": [1] * 125}), 400)
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("125", "4", "128"))
    error = refused(http.post("/v1/completions", json=COMPLETION | {"prompt": "a" * 2000}), 400)
    assert "2000 characters" in error["message"] and "128 tokens" in error["message"]
    assert refused(http.post("/v1/completions", json=COMPLETION | {"prompt": "§"}), 400)["param"] == "prompt"
    long = [{"role": "user", "content": "a" * 120}]
    fields = {"model": "tiny", "messages": long}
    assert refused(http.post("/v1/chat/completions", json=fields), 400)["code"] == "context_length_exceeded"


def test_paths_and_methods_that_are_not_there(http):
    assert "/v1/nothing" in refused(http.get("/v1/nothing"), 404)["message"]
    assert "GET" in refused(http.get("/v1/completions"), 405)["message"]


def test_a_body_must_be_called_json(http):
    body = json.dumps(COMPLETION)
    assert "application/json" in refused(http.post("/v1/completions", content=body), 415)["message"]
    as_text = {"content-type": "text/plain"}
    refused(http.post("/v1/completions", content=body, headers=as_text), 415)
    named = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/completions", content=body, headers=named).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused(chunked):
    body = json.dumps(COMPLETION | {"user": "x" * 3000}).encode()
    headers = {"content-type": "application/json"}

    def parts(data):
        for start in range(0, len(data), 500):
            yield data[start : start + 500]

    with LiveServer(FakeEngine(), max_body_bytes=1000) as live, live.http() as client:
        content = parts(body) if chunked else body
        error = refused(client.post("/v1/completions", content=content, headers=headers), 413)
        assert "1000 bytes" in error["message"]
        assert not live.engine.added
        small = json.dumps(COMPLETION).encode()
        content = parts(small) if chunked else small
        assert client.post("/v1/completions", content=content, headers=headers).status_code == 200


def test_a_key_is_required_everywhere_but_for_health():
    with LiveServer(FakeEngine(), api_key="sesame") as live, live.http() as client:
        for wrong in (None, "Bearer wrong", "sesame", "Bearer", "bearer sesame!"):
            headers = {"authorization": wrong} if wrong else {}
            error = refused(client.post("/v1/completions", json=COMPLETION, headers=headers), 401)
            assert error["code"] == "invalid_api_key"
        for path in ("/v1/models", "/metrics", "/nothing"):
            refused(client.get(path), 401)
        assert client.get("/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            live.client(api_key="wrong").models.list()
        assert live.client(api_key="sesame").models.list().data[0].id == "tiny"
        assert not live.engine.added


def test_messages_that_the_template_refuses_are_the_clients_error():
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}x"
    with LiveServer(FakeEngine(), tiny_tokenizer(template)) as live, live.http() as client:
        fields = CHAT | {"messages": [{"role": "assistant", "content": "hi"}]}
        error = refused(client.post("/v1/chat/completions", json=fields), 400)
        assert "begin with the user" in error["message"] and error["param"] == "messages"
    with LiveServer(FakeEngine(), tiny_tokenizer(None)) as live, live.http() as client:
        assert "--chat-template" in refused(client.post("/v1/chat/completions", json=CHAT), 400)["message"]


def test_template_options_of_the_client_reach_the_template(server):
    template = "{% if loud %}AB{% else %}a{% endif %}"
    with LiveServer(FakeEngine(), tiny_tokenizer(template)) as live, live.http() as client:
        for options, tokens in (({}, 1), ({"loud": True}, 2)):
            fields = CHAT | {"chat_template_kwargs": options}
            assert client.post("/v1/chat/completions", json=fields).json()["usage"]["prompt_tokens"] == tokens


def test_tools_are_told_to_the_model_unless_none_may_be_called():
    tools = [{"type": "function", "function": {"name": "look"}}]
    with LiveServer(FakeEngine(), context_tokens=2000) as live, live.http() as client:

        def prompt_tokens(**fields):
            return client.post("/v1/chat/completions", json=CHAT | fields).json()["usage"]["prompt_tokens"]

        without = prompt_tokens()
        assert prompt_tokens(tools=tools, tool_choice="none") == without
        assert prompt_tokens(tools=tools) == prompt_tokens(tools=tools, tool_choice="auto") > without


def scrape(client):
    """{(name, labels without the model): value}."""
    response = client.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            assert sample.labels["model_name"] == "tiny"
            values[sample.name.removeprefix("wholecurve:"), *labels.values()] = sample.value
    return values


def test_metrics_count_what_happened():
    with LiveServer(FakeEngine()) as live, live.http() as client:
        before = scrape(client)
        assert before["request_success_total", "length"] == 0
        client.post("/v1/completions", json=COMPLETION | {"n": 2})
        client.post("/v1/completions", json=COMPLETION | {"max_tokens": 1, "prompt": [1] * 7})
        client.post("/v1/completions", json=COMPLETION | {"n": 0})
        values = scrape(client)
        assert values["request_success_total", "length"] == 3 and values["request_success_total", "abort"] == 0
        assert values["requests_refused_total", "400"] == 1
        assert values["generation_tokens_total",] == 9 and values["prompt_tokens_total",] == 13
        assert values["request_generation_tokens_sum",] == 9 and values["request_prompt_tokens_sum",] == 13
        assert values["time_to_first_token_seconds_count",] == values["e2e_request_latency_seconds_count",] == 3
        assert values["request_time_per_output_token_seconds_count",] == 2, "undefined for one token"
        assert values["time_to_first_token_seconds_sum",] <= values["e2e_request_latency_seconds_sum",]
        assert values["request_generation_tokens_bucket", "1.0"] == 1
        assert values["request_generation_tokens_bucket", "5.0"] == 3
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
        assert [values[name,] for name in gauges] == [0, 0, 0.2, 1]
        assert values["prefix_cache_hits_total",] == 3 and values["prefix_cache_queries_total",] == 5
        assert values["engine_steps_total",] == live.engine.num_steps


def test_small_writes_are_sent_at_once(server, http):
    assert http.get("/health").status_code == 200
    connections = list(server.server.uvicorn.server_state.connections)
    assert connections
    for connection in connections:
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


values = st.none() | st.booleans() | st.integers(-3, 200) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = ["role", "content", "type", "function", "name", "5", "json_schema"]
things = st.recursive(
    values | st.text(max_size=6) | st.sampled_from(["tiny", "auto", "required", "json_object", "user", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "prompt", "messages", "n", "stop", "stream", "stream_options", "logit_bias", "seed", "temperature", "top_p",
    "top_k", "tools", "tool_choice", "response_format", "logprobs", "echo", "min_tokens", "max_tokens",
    "chat_template_kwargs", "stop_token_ids", "priority", "cache_salt", "add_special_tokens", "top_logprobs",
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(is_chat=st.booleans(), fields=st.dictionaries(st.sampled_from(FIELDS), things, max_size=4))
def test_no_body_is_the_servers_error(http, is_chat, fields):
    path, base = ("chat/completions", CHAT) if is_chat else ("completions", COMPLETION)
    response = http.post(f"/v1/{path}", content=json.dumps(base | fields), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 429), response.text
    if response.status_code != 200:
        refused(response, response.status_code)

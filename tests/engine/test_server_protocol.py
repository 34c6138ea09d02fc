"""What clients may send: fields that are taken, and one clear error for everything else."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.engine.sampling import GrammarSpec
from wholecurve.engine.server.api_error import ApiError
from wholecurve.engine.server.chat_protocol import ChatRequest, ForcedTool
from wholecurve.engine.server.params import answer_length, check_token_ids, sampling_params
from wholecurve.engine.server.protocol import CompletionRequest, parse_request
from wholecurve.engine.server.settings import ServerSettings

SETTINGS = ServerSettings("tiny", context_tokens=20, vocab_size=50)
COMPLETION = {"model": "tiny", "prompt": "abc"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
CALL = {"function": {"name": "a", "arguments": ""}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def parsed(model, base, **fields):
    return parse_request(model, json.dumps(base | fields).encode())


def refused(model, body):
    with pytest.raises(ApiError) as caught:
        parse_request(model, body if isinstance(body, bytes) else json.dumps(body).encode())
    error = caught.value
    assert error.status == 400 and error.type == "invalid_request_error"
    assert orjson.loads(error.body()) == {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    }
    assert "\n" not in error.message
    return error


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", ["abc"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_is_text_or_token_ids_one_or_several(prompt, expected):
    assert parsed(CompletionRequest, COMPLETION, prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1, "a"], [[1], []], [True], {"a": 1}, 3, [1.5], [[1], "a"], ["a"] * 2049]
)
def test_other_prompts_are_refused(prompt):
    assert refused(CompletionRequest, COMPLETION | {"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize(
    ("field", "value", "param", "words"),
    [
        ("temperature", -0.1, "temperature", "greater than or equal to 0"),
        ("temperature", "1", "temperature", "valid number"),
        ("temperature", True, "temperature", "valid number"),
        ("top_p", 1.1, "top_p", "less than or equal to 1"),
        ("n", 0, "n", "greater than or equal to 1"),
        ("n", 129, "n", "less than or equal to 128"),
        ("n", 1.5, "n", "integer"),
        ("max_tokens", 0, "max_tokens", "greater than or equal to 1"),
        ("max_tokens", 10**30, "max_tokens", ""),
        ("seed", -1, "seed", "greater than or equal to 0"),
        ("seed", 2**64, "seed", "less than"),
        ("stop", [""], "stop", "none of them empty"),
        ("stop", 3, "stop", "a string or a list of strings"),
        ("stop", ["a"] * 65, "stop", "65 stop strings; at most 64"),
        ("logprobs", 21, "logprobs", "less than or equal to 20"),
        ("logit_bias", {"a": 1}, "logit_bias", "'a' is not a token id"),
        ("logit_bias", {"²": 1}, "logit_bias", "is not a token id"),
        ("logit_bias", {"5": 101}, "logit_bias", "less than or equal to 100"),
        ("suffix", "end", "suffix", "not supported"),
        ("best_of", 3, "best_of", "it may only equal n"),
        ("stream_options", {"include_usage": True}, "stream_options", "only with stream"),
        ("stream_options", {"continuous_usage_stats": True}, "stream_options.continuous_usage_stats", "only with"),
        ("stream_options", {"chunk": True}, "stream_options.chunk", "unknown field: stream_options.chunk"),
        ("logprob", 3, "logprob", "unknown field: logprob"),
        ("stop_token_ids", [-1], "stop_token_ids[0]", "greater than or equal to 0"),
        ("priority", 2**63, "priority", ""),
        ("repetition_penalty", 0, "repetition_penalty", "greater than or equal to 0.01"),
        ("presence_penalty", 2.5, "presence_penalty", "less than or equal to 2"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(field, value, param, words):
    error = refused(CompletionRequest, COMPLETION | {field: value})
    assert error.param == param and words in error.message and param in error.message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "'system'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": "a", "mood": 1}]}, "messages[0].mood", "unknown field"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "got 'image_url'",
        ),
        ({"messages": [{"role": "user", "content": "a", "audio": {"id": 1}}]}, "messages[0].audio", "None"),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
            "only in messages of the assistant",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[]"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", "two functions have one name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [{"type": "shell"}]}, "tools[0].type", "'function'"),
        ({"tool_choice": "required"}, "tool_choice", "only with tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "must be auto, none, required"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", "must be auto"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}},
            "tool_choice",
            "no tool is called 'find'",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "only with logprobs"),
        ({"logprobs": 2}, "logprobs", "valid boolean"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "that type needs it"),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "response_format", "not together with tools"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "tools is not the client's"),
        ({"prompt": "a"}, "prompt", "unknown field"),
        ({"functions": []}, "functions", "unknown field"),
    ],
)
def test_a_wrong_field_of_a_chat_is_named(fields, param, words):
    error = refused(ChatRequest, CHAT | fields)
    assert error.param == param and words in error.message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nul", b"\xff\xfe", b'{"a": NaN}', b"[" * 100000, b'{"prompt": "\\ud800"}']
)
def test_what_is_not_json_is_refused(body):
    assert refused(CompletionRequest, body).code == "invalid_json"


@pytest.mark.parametrize("body", [b"[]", b"3", b'"text"', b"null"])
def test_json_that_is_no_object_is_refused(body):
    assert "must be a JSON object" in refused(CompletionRequest, body).message


def test_missing_fields_are_named():
    error = refused(CompletionRequest, {"prompt": "a"})
    assert (error.message, error.param, error.code) == ("missing field: model", "model", "missing_field")


def test_null_counts_as_not_given_and_harmless_fields_are_taken():
    nothing = dict.fromkeys(["n", "stop", "stream", "logit_bias", "seed", "tools", "response_format", "top_k"])
    harmless = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"}
    request = parsed(ChatRequest, CHAT, **nothing, **harmless)
    assert (request.n, request.stream, request.tools, request.stop) == (1, False, [], None)
    error = refused(CompletionRequest, COMPLETION | {"prompt": None})
    assert error.message == "missing field: prompt"


def test_text_parts_of_a_message_are_joined():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    request = parsed(ChatRequest, CHAT, messages=[{"role": "user", "content": parts}])
    assert request.messages[0].content == "one two"


def test_an_answer_can_be_sent_back_as_the_client_library_dumps_it():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}, "index": 0}
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": None, "audio": None}
    request = parsed(ChatRequest, CHAT, messages=[message | {"function_call": None, "tool_calls": [call]}])
    assert request.messages[0].tool_calls[0].function.arguments == '{"a": 1}'


def test_a_tool_choice_is_a_word_or_a_function():
    assert parsed(ChatRequest, CHAT, tools=[TOOL], tool_choice="required").tool_choice == "required"
    named = {"type": "function", "function": {"name": "look"}}
    assert parsed(ChatRequest, CHAT, tools=[TOOL], tool_choice=named).tool_choice == ForcedTool("look")


def test_every_sampling_field_reaches_the_engine():
    request = parsed(
        CompletionRequest, COMPLETION,
        temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, seed=2**64 - 1, n=2, stop=["x", "yz"], ignore_eos=True,
        min_tokens=3, stop_token_ids=[4, 9], repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias={"3": -100, "1": 2}, include_stop_str_in_output=True,
    )  # fmt: skip
    grammar = None
    first, second = sampling_params(request, SETTINGS, 9, 2, grammar)
    expected = dict(
        max_new_tokens=9, min_new_tokens=3, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, ignore_eos=True,
        stop_token_ids=(4, 9), stop=("x", "yz"), repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias=((1, 2.0), (3, -100.0)), logprobs=2, grammar=None, include_stop=True,
    )  # fmt: skip
    for params, seed in ((first, 2**64 - 1), (second, 0)):
        assert {name: getattr(params, name) for name in expected} == expected
        assert params.seed == seed


def test_defaults_are_those_of_openai():
    params = sampling_params(parsed(CompletionRequest, COMPLETION), SETTINGS, 16, None)[0]
    assert (params.temperature, params.top_p, params.seed, params.logprobs, params.stop) == (1.0, 1.0, None, None, ())
    assert parsed(CompletionRequest, COMPLETION).max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"min_tokens": 10}, "min_tokens"),
    ],
)
def test_fields_that_do_not_fit_the_model_are_named(fields, param):
    request = parsed(CompletionRequest, COMPLETION, **fields)
    with pytest.raises(ApiError) as caught:
        sampling_params(request, SETTINGS, 9, None)
    assert caught.value.param == param and caught.value.status == 400
    sampling_params(parsed(CompletionRequest, COMPLETION, logit_bias={"49": 1}, min_tokens=9), SETTINGS, 9, None)


def test_a_grammar_and_least_tokens_exclude_each_other():
    request = parsed(CompletionRequest, COMPLETION, min_tokens=1)
    with pytest.raises(ApiError, match="min_tokens"):
        sampling_params(request, SETTINGS, 9, None, GrammarSpec.json_object())


def test_the_room_for_an_answer_is_what_the_prompt_leaves():
    assert [answer_length(SETTINGS, 12, wanted) for wanted in (None, 1, 8)] == [8, 1, 8]
    for prompt, wanted, numbers in ((12, 9, ("12", "9", "20")), (20, 1, ("20",)), (25, None, ("25", "20"))):
        with pytest.raises(ApiError) as caught:
            answer_length(SETTINGS, prompt, wanted)
        assert caught.value.code == "context_length_exceeded" and all(n in caught.value.message for n in numbers)


def test_token_ids_lie_in_the_vocabulary():
    check_token_ids(SETTINGS, "prompt", [0, 49])
    for ids in ([50], [-1], [0, 2**70]):
        with pytest.raises(ApiError, match="between 0 and 49"):
            check_token_ids(SETTINGS, "prompt", ids)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(data=st.data(), model=st.sampled_from([CompletionRequest, ChatRequest]))
def test_any_values_in_any_fields_are_taken_or_refused(data, model):
    base = COMPLETION if model is CompletionRequest else CHAT
    names = st.sampled_from([*model.model_fields, "other"])
    fields = base | data.draw(st.dictionaries(names, anything, max_size=3))
    try:
        request = parse_request(model, json.dumps(fields).encode())
    except ApiError as error:
        assert error.status == 400 and error.message
    else:
        assert isinstance(request, model)


@settings(max_examples=100)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_refused_in_one_line(body):
    try:
        parse_request(ChatRequest, body)
    except ApiError as error:
        assert error.status == 400 and "\n" not in error.message

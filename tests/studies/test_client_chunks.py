"""What an event of a streamed answer says, in the forms that servers write."""

import orjson
import pytest

from wholecurve.studies.serving.client.chunks import Chunk, NotAChunk, Usage, error_text, parse_chunk
from wholecurve.studies.serving.client.events import Event


def chunk(document) -> Chunk:
    return parse_chunk(Event(orjson.dumps(document)))


def of_delta(**delta) -> Chunk:
    return chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def test_completions():
    assert chunk({"choices": [{"index": 0, "text": " a", "finish_reason": None}]}) == Chunk(text=" a")
    assert chunk({"choices": [{"text": "", "finish_reason": "length"}]}) == Chunk(finish_reason="length")


def test_chat():
    assert of_delta(content="a") == Chunk(text="a")
    assert chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) == Chunk(finish_reason="stop")


@pytest.mark.parametrize("delta", [{"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}, {}])
def test_a_role_or_an_empty_text_is_no_content(delta):
    assert of_delta(**delta).content == ""


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_content(name):
    """guidellm#737, inference-perf#559, genai-bench#81, production-stack#873: without them TTFT was the thinking."""
    thought = of_delta(**{name: "hm", "content": None})
    assert (thought.reasoning, thought.text, thought.content) == ("hm", "", "hm")


def test_a_thought_under_both_of_its_names_is_one_thought():
    assert of_delta(reasoning_content="hm", reasoning="hm").content == "hm"


def test_names_and_arguments_of_tools_are_content():
    begun = of_delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}])
    goes_on = of_delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}])
    assert (begun.tool_text, goes_on.tool_text) == (begun.content, goes_on.content) == ("look", '{"a"')
    assert of_delta(tool_calls=[{"index": 0, "id": "c1", "function": {"arguments": ""}}]).content == ""
    assert of_delta(tool_calls=[{"index": 0, "id": "c1"}]).content == ""


def test_two_calls_in_one_chunk_are_both_content():
    calls = [{"index": i, "function": {"name": name, "arguments": "{}"}} for i, name in enumerate(("a", "b"))]
    assert of_delta(tool_calls=calls).tool_text == "a{}b{}"


def test_arguments_may_be_an_object():
    assert of_delta(tool_calls=[{"function": {"name": "a", "arguments": {"x": 1}}}]).tool_text == 'a{"x":1}'


def test_a_call_in_its_old_form_is_content():
    assert of_delta(function_call={"name": "look", "arguments": "{}"}).tool_text == "look{}"


def test_a_refusal_is_content():
    assert of_delta(refusal="no").content == "no"


def test_a_text_in_both_forms_counts_once():
    """Together's completions carry a delta too, its chats a text."""
    both = {"index": 0, "text": "____", "delta": {"token_id": 2179, "role": "assistant", "content": "____"}}
    assert chunk({"choices": [both]}).content == "____"
    assert chunk({"choices": [{"index": 0, "text": "a", "delta": {"role": "assistant"}}]}).content == "a"


def test_only_choice_0_counts():
    choices = [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]
    assert chunk({"choices": choices}).content == "a"
    assert chunk({"choices": choices[:1]}) == Chunk()


def test_counts_alone():
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    assert chunk({"choices": [], "usage": usage}) == Chunk(usage=Usage(5, 7))
    assert chunk({"usage": usage}) == Chunk(usage=Usage(5, 7))


def test_counts_beside_an_empty_text():
    """sglang#24254, #10746: there they come with the last chunk's empty text."""
    document = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}
    assert chunk(document) == Chunk(finish_reason="stop", usage=Usage(None, 7))


def test_details_of_counts():
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert chunk({"choices": [], "usage": usage}).usage == Usage(5, 7, 3, 2)


def test_details_that_are_not_told_are_not_0():
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}
    assert chunk({"choices": [], "usage": usage}).usage == Usage(5, 7, None, None)


def test_reasoning_tokens_may_stand_beside_the_others():
    """So SGLang writes them."""
    assert chunk({"choices": [], "usage": {"completion_tokens": 7, "reasoning_tokens": 4}}).usage.reasoning_tokens == 4


@pytest.mark.parametrize("count", ["7", 7.0, -1, True, None])
def test_what_is_no_count_is_not_told(count):
    assert chunk({"choices": [], "usage": {"completion_tokens": count}}).usage == Usage()


def test_usage_that_is_null_is_none():
    assert chunk({"choices": [{"index": 0, "text": "a"}], "usage": None}).usage is None


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "engine\n died", "type": "server_error"}},
        {"error": "engine died"},
        {"error": {"message": "engine died"}, "choices": []},
    ],
)
def test_errors(document):
    assert chunk(document) == Chunk(error="engine died")


def test_an_event_named_error_is_one():
    assert parse_chunk(Event(b'{"message": "engine died", "code": 500}', "error")).error == "engine died"
    assert parse_chunk(Event(b"engine died", "error")).error == "engine died"
    assert parse_chunk(Event(b"", "error")).error


def test_an_error_that_is_null_is_none():
    assert chunk({"error": None, "choices": [{"index": 0, "text": "a"}]}) == Chunk(text="a")


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"nonsense",
        b"[]",
        b"7",
        b"{}",
        b'{"choices": null}',
        b'{"choices": {}}',
        b'{"choices": ["a"]}',
        b'{"choices": [{"text": 7}]}',
        b'{"choices": [{"delta": "a"}]}',
        b'{"choices": [{"delta": {"content": ["a"]}}]}',
        b'{"choices": [{"delta": {"tool_calls": "a"}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": "a"}]}}]}',
        b'{"choices": [{"text": "a", "finish_reason": 1}]}',
        b'{"choices": [{"text": "\xff"}]}',
    ],
)
def test_what_is_no_chunk_says_why(data):
    with pytest.raises(NotAChunk) as caught:
        parse_chunk(Event(data))
    assert str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "document, text",
    [
        ({"error": {"message": "slow down"}}, "slow down"),
        ({"detail": "not found"}, "not found"),
        ({"message": "a\nb"}, "a b"),
        ({"detail": [{"msg": "x"}]}, '[{"msg":"x"}]'),
        (["x"], '["x"]'),
    ],
)
def test_messages_of_errors(document, text):
    assert error_text(document) == text

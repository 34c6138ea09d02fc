"""What a script says, without sockets: chunks, tokens, moments, endings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.errors import UserError
from wholecurve.studies.serving.proof.reply import Asked, Reply
from wholecurve.studies.serving.proof.script import FAULTS, Script, script_from

COMPLETION = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5, "stream": True}


def writes_of(script, body=COMPLETION):
    return list(Reply(script, Asked.of(body, "messages" in body)).writes())


def events_of(script, body=COMPLETION):
    """Every event's data, parsed, without the closing [DONE]."""
    text = b"".join(write.data for write in writes_of(script, body)).decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    wanted=st.integers(0, 60),
    per_write=st.integers(1, 5),
    chat=st.booleans(),
)
def test_every_token_is_in_exactly_one_chunk_and_one_write(sizes, wanted, per_write, chat):
    script = Script(tokens_per_chunk=sizes, output_tokens=wanted, chunks_per_write=per_write)
    body = CHAT if chat else COMPLETION
    texts = "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for event in events_of(script, body)
        for choice in event["choices"]
    )
    assert texts.split() == [f"t{i}" for i in range(wanted)]
    assert sum(tokens for write in writes_of(script, body) for tokens in write.tokens) == wanted


def test_moments_are_ttft_then_gaps_in_turn():
    script = Script(ttft_s=1.0, gaps_s=(0.1, 0.2), headers_s=0.5)
    moments = [write.at_s for write in writes_of(script) if write.tokens]
    assert moments == pytest.approx([1.0, 1.1, 1.3, 1.4, 1.6])


def test_a_burst_is_one_write_at_its_last_chunks_moment():
    burst = [write for write in writes_of(Script(gaps_s=(0.1,), chunks_per_write=3)) if write.tokens]
    assert [write.tokens for write in burst] == [(1, 1, 1), (1, 1)]
    assert [write.at_s for write in burst] == pytest.approx([0.2, 0.4])


def test_pieces_join_to_the_same_bytes_and_the_last_one_ends_the_chunk():
    whole = b"".join(write.data for write in writes_of(Script(token_text=" é☃😀")))
    pieces = writes_of(Script(token_text=" é☃😀", split_bytes=1))
    assert b"".join(write.data for write in pieces) == whole
    assert sum(len(write.tokens) for write in pieces) == 5
    assert all(write.data.endswith(b"\n") for write in pieces if write.tokens)


def test_output_length_is_the_requests_unless_the_script_has_one():
    assert Script().chunk_sizes(3) == [1, 1, 1]
    assert Script(output_tokens=7, tokens_per_chunk=(3, 2)).chunk_sizes(3) == [3, 2, 2]
    assert Asked.of({"max_completion_tokens": 9, "max_tokens": 4}, True).wanted_tokens == 9


def test_thoughts_come_first_and_calls_of_tools_last():
    script = Script(reasoning_tokens=2, tool_call_tokens=2, output_tokens=5, reasoning_field="reasoning")
    deltas = [event["choices"][0]["delta"] for event in events_of(script, CHAT)]
    assert [list(delta) for delta in deltas] == [
        ["role", "content"], ["reasoning"], ["reasoning"], ["content"], ["tool_calls"], ["tool_calls"],
    ]  # fmt: skip
    assert deltas[4]["tool_calls"][0]["function"]["name"] == "look_up"
    assert deltas[5]["tool_calls"][0]["function"]["arguments"] == " t4"


@pytest.mark.parametrize(
    ("usage", "options", "told"),
    [
        ("as asked", {}, [None] * 5),
        ("as asked", {"include_usage": True}, [None] * 5 + [5]),
        ("as asked", {"include_usage": True, "continuous_usage_stats": True}, [1, 2, 3, 4, 5, 5]),
        ("none", {"include_usage": True}, [None] * 5),
        ("last chunk", {}, [None] * 4 + [5]),
        ("empty text", {}, [None] * 5 + [5]),
        ("zero", {}, [None] * 5 + [0]),
    ],
)
def test_usage_is_told_where_the_script_says(usage, options, told):
    events = events_of(Script(usage=usage), {**COMPLETION, "stream_options": options})
    assert [event.get("usage", {}).get("completion_tokens") for event in events] == told


def test_usage_details_tell_cached_and_reasoning_tokens():
    script = Script(reasoning_tokens=3, tokens_per_chunk=(2,), cached_tokens=1, usage="last chunk")
    usage = events_of(script, CHAT)[-1]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    # A chunk that begins as a thought is one: two chunks of two tokens hold the three.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert usage["prompt_tokens"] == 2


def test_finish_reason_is_in_the_last_content_chunk_or_in_the_empty_one_after_it():
    reasons = [event["choices"][0]["finish_reason"] for event in events_of(Script(output_tokens=2))]
    assert reasons == [None, "length"]
    reasons = [event["choices"][0]["finish_reason"] for event in events_of(Script(output_tokens=1, usage="empty text"))]
    assert reasons == [None, "length"]
    assert [event["choices"][0]["finish_reason"] for event in events_of(Script(output_tokens=0))] == ["length"]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("never answers", "closes at once")])
def test_a_fault_lets_its_chunks_through_and_no_more(fault):
    if fault == "not http":
        return
    writes = writes_of(Script(fault=fault, after_chunks=2, gaps_s=(0.5,)))
    assert sum(len(write.tokens) for write in writes) == 2
    assert writes[-1].ending in ("keep", "close", "reset", "stall")
    assert [write.ending for write in writes[:-1]] == [None] * (len(writes) - 1)
    assert b"length" not in b"".join(write.data for write in writes)


def test_a_fault_inside_a_burst_sends_what_came_before_it():
    writes = writes_of(Script(fault="closes", after_chunks=2, chunks_per_write=4))
    assert [write.tokens for write in writes] == [(1, 1), ()]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"ttft": 1}, "test: ttft: Extra inputs are not permitted"),
        ({"gaps_s": []}, "test: gaps_s: Tuple should have at least 1 item"),
        ({"ttft_s": -1}, "test: ttft_s: Input should be greater than or equal to 0"),
        ({"fault": "catches fire"}, "test: fault: Input should be 'never answers'"),
        ({"fault": "not http", "after_chunks": 1}, "test: script: Value error, after_chunks is 1, but 'not http'"),
        ({"fault": "stalls", "status": 500}, "test: script: Value error, status 500 is a whole reply"),
        ({"chunks_per_write": 2, "split_bytes": 3}, "exclude one another"),
        ([], "test: a script is a JSON object, not list"),
    ],
)
def test_a_wrong_script_is_one_line_with_its_field(document, message):
    with pytest.raises(UserError) as raised:
        script_from(document, "test")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)

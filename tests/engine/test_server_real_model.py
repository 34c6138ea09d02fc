"""The server in front of SmolLM2: its tokenizer, its template, its grammar."""

import copy
import json

import pytest
from live_server import LiveServer

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.load import load_model
from wholecurve.models.tokenizer import chat_prompt_ids, load_tokenizer

pytestmark = pytest.mark.real_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer(real_model_files):
    return load_tokenizer(real_model_files.hf_folder())


@pytest.fixture(scope="module")
def engine(real_model_files, tokenizer):
    model = load_model(real_model_files, "bfloat16", "cpu")
    return Engine(model, tokenizer=copy.deepcopy(tokenizer), cache_tokens=4096, prefix_cache=True, check=True)


@pytest.fixture(scope="module")
def client(engine, tokenizer):
    config = engine.model.config
    with LiveServer(engine, tokenizer, context_tokens=4096, vocab_size=config.vocab_size, model_name="smol") as live:
        yield live.client()


def test_a_chat_is_what_the_engine_says(client, engine, tokenizer, real_model_files):
    question = "What is the capital of France?"
    body = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=12
    )
    alone = Engine(engine.model, cache_tokens=256)
    tokens = alone.generate([chat_prompt_ids(tokenizer, question)], SamplingParams(max_new_tokens=12))[0]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    assert body.choices[0].message.content == text and "Paris" in text
    assert body.choices[0].finish_reason == "stop" and body.usage.completion_tokens == len(tokens)


def test_split_characters_arrive_whole(client):
    """The tokenizer spells these with several tokens each; no chunk may hold a part of one."""
    text = "日本語のテキスト 🎉🎊 naïve"
    stream = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": f"Repeat exactly: {text}"}], temperature=0, max_tokens=24,
        stream=True, logprobs=True,
    )  # fmt: skip
    pieces, content = [], b""
    for chunk in stream:
        choice = chunk.choices[0]
        pieces.append(choice.delta.content or "")
        for entry in choice.logprobs.content if choice.logprobs else []:
            if not entry.token.startswith("<|"):
                content += bytes(entry.bytes)
    assert all("\ufffd" not in piece for piece in pieces[:-2])
    assert "".join(pieces).encode() == content.decode(errors="replace").encode()
    assert any(ord(character) > 127 for character in "".join(pieces)), "the model did not write what the test needs"


@pytest.mark.parametrize(("temperature", "seed"), [(0, 0), (1.5, 2)])
def test_answers_validate_against_their_schema(client, temperature, seed):
    answer = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Describe a person as JSON."}], max_tokens=150,
        temperature=temperature, seed=seed,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    person = json.loads(answer.choices[0].message.content)
    assert list(person) == ["name", "age", "tags"]
    assert isinstance(person["name"], str) and len(person["name"]) <= 20
    assert isinstance(person["age"], int) and 0 <= person["age"] <= 120
    assert 1 <= len(person["tags"]) <= 2 and set(person["tags"]) <= {"old", "young"}


def test_any_json_object(client):
    answer = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": 'Answer with {"city": "Paris"}'}], max_tokens=200,
        temperature=0, response_format={"type": "json_object"},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_tool_is_called_its_result_given_back_and_the_answer_goes_on(client):
    messages = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
    fields = {"model": "smol", "tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 64}
    named = {"type": "function", "function": {"name": "get_weather"}}
    first = client.chat.completions.create(messages=messages, tool_choice=named, **fields)
    (call,) = first.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "kelvin")
    messages += [
        first.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"},
    ]
    last = client.chat.completions.create(messages=messages, tool_choice="none", **(fields | {"max_tokens": 8}))
    assert last.choices[0].message.tool_calls is None and last.choices[0].message.content
    required = client.chat.completions.create(messages=messages[:1], tool_choice="required", **fields)
    calls = required.choices[0].message.tool_calls
    assert calls and {call.function.name for call in calls} <= {"get_weather", "get_time"}

"""Tools: how calls are told to a model, found in its answer, and forced by a grammar."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import tiny_tokenizer

from wholecurve.engine.sampling import Grammars
from wholecurve.engine.server.chat_protocol import ForcedTool, Message, Tool
from wholecurve.engine.server.tool_prompt import plain_messages, template_messages
from wholecurve.engine.server.tools import TOOL_FORMATS, ToolCall, ToolParser, tool_format, tool_grammar
from wholecurve.errors import UserError

HERMES, JSON = TOOL_FORMATS["hermes"], TOOL_FORMATS["json"]


def tool(name, strict=None, **properties):
    parameters = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip
    return Tool.model_validate(
        {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}
    )


LOOK, ADD = tool("look", at={"type": "boolean"}), tool("add", a={"type": "integer"}, b={"type": "integer"})


def told(parts):
    """Text joined, calls as (name, arguments)."""
    result = []
    for part in parts:
        if isinstance(part, ToolCall):
            result.append((part.name, json.loads(part.arguments)))
        elif result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    return result


def parse(text, style=HERMES, cuts=()):
    parser = ToolParser(style, {"look", "add"})
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = []
    for start, end in itertools.pairwise(edges):
        parts += parser.push(text[start:end])
    result = told(parts + parser.finish())
    assert parser.num_calls == sum(isinstance(part, tuple) for part in result)
    return result


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": true}}\n</tool_call>'
ANSWERS = {
    "just text": ["just text"],
    "a < b <tool": ["a < b <tool"],
    "two\n\n": ["two\n\n"],
    "": [],
    CALL: [("look", {"at": True})],
    f"I look.\n\n{CALL}": ["I look.", ("look", {"at": True})],
    f"{CALL}\n{CALL}\n": [("look", {"at": True})] * 2,
    f"{CALL} and more": [("look", {"at": True}), " and more"],
    '<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>': [("add", {"a": 1})],
    '<tool_call>[{"name": "add", "arguments": {}}, {"name": "look"}]</tool_call>': [("add", {}), ("look", {})],
    '<tool_call>{"name": "look"}': [("look", {})],
    '<tool_call>{"name": "loo': ['<tool_call>{"name": "loo'],
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>': [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'
    ],
    "<tool_call>[]</tool_call>": ["<tool_call>[]</tool_call>"],
    '<tool_call>{"name": ["look"]}</tool_call>': ['<tool_call>{"name": ["look"]}</tool_call>'],
    '<tool_call>{"name": "look", "arguments": "at"}</tool_call>': [
        '<tool_call>{"name": "look", "arguments": "at"}</tool_call>'
    ],
    f"<tool_call>broken</tool_call>{CALL}": ["<tool_call>broken</tool_call>", ("look", {"at": True})],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_calls_are_found_and_everything_else_stays_text(answer):
    assert parse(answer) == ANSWERS[answer]


@settings(max_examples=200)
@given(answer=st.sampled_from(list(ANSWERS)), cuts=st.lists(st.integers(0, 90), max_size=12))
def test_however_the_answer_is_cut_the_parts_are_the_same(answer, cuts):
    assert parse(answer, cuts=cuts) == ANSWERS[answer]
    assert parse(answer, cuts=range(len(answer))) == ANSWERS[answer]


def test_text_is_given_as_soon_as_it_cannot_be_a_marker():
    parser = ToolParser(HERMES, {"look"})
    assert parser.push("hello <too") == ["hello"]
    assert parser.push("thing") == [" <toothing"]
    assert parser.push("x") == ["x"]


def test_ids_of_calls_differ():
    parser = ToolParser(HERMES, {"look"})
    calls = parser.push(CALL + CALL)
    assert len({call.call_id for call in calls}) == 2 and all(call.call_id.startswith("call_") for call in calls)


@pytest.mark.parametrize("cuts", [(), (1, 5, 20)])
def test_a_model_without_markers_answers_with_the_call_alone(cuts):
    assert parse('{"name": "add", "parameters": {"a": 2}}', JSON, cuts) == [("add", {"a": 2})]
    assert parse("It is sunny.", JSON, cuts) == ["It is sunny."]


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        (None, "", HERMES),
        (None, "{% if tools %}<tool_call>{% endif %}", HERMES),
        (None, '{"name": function name, "parameters": dictionary}', JSON),
        ("json", "<tool_call>", JSON),
    ],
)
def test_the_format_is_the_one_that_the_template_speaks_of(name, template, expected):
    assert tool_format(name, template) is expected


def test_an_unknown_format_is_refused():
    with pytest.raises(UserError, match="tool format 'xml'; there is hermes, json"):
        tool_format("xml", "")


def accepts(spec, text):
    """Whether a grammar takes a text as a whole; the tokenizer has one token per character."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text, "a character without a token"
    matcher = Grammars(tokenizer, 61, (7,)).matcher(spec)
    try:
        matcher.commit([*ids, 7])
    except RuntimeError:
        return False
    return matcher.is_terminated


LOOKED = '<tool_call>\n{"name": "look", "arguments": {"at": true}}\n</tool_call>'
ADDED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "add", "arguments": {"a": true, "b": 22}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "is_parallel", "text", "expected"),
    [
        ("required", True, LOOKED, True),
        ("required", True, f"{LOOKED}\n{ADDED}", True),
        ("required", False, f"{LOOKED}\n{ADDED}", False),
        ("required", False, ADDED, True),
        ("required", True, "some text", False),
        ("required", True, WRONG, False),
        ("required", True, "", False),
        (ForcedTool("add"), True, ADDED, True),
        (ForcedTool("add"), True, LOOKED, False),
        (ForcedTool("add"), True, f"{ADDED}\n{ADDED}", False),
    ],
)
def test_required_calls_are_forced_and_what_is_forced_is_found(choice, is_parallel, text, expected):
    spec = tool_grammar([LOOK, ADD], choice, is_parallel, HERMES)
    assert accepts(spec, text) == expected
    if expected:
        assert all(isinstance(part, tuple) for part in parse(text))


def test_a_forced_call_without_markers_is_the_whole_answer():
    spec = tool_grammar([LOOK, ADD], "required", True, JSON)
    text = '{"name": "add", "parameters": {"a": 1, "b": 2}}'
    assert accepts(spec, text) and not accepts(spec, text + "\n" + text)
    assert parse(text, JSON) == [("add", {"a": 1, "b": 2})]


def test_a_schema_with_references_of_its_own_holds_within_the_call():
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/point"}},
        "required": ["p"],
        "additionalProperties": False,
        "$defs": {"point": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}},
    }
    move = Tool.model_validate({"type": "function", "function": {"name": "look", "parameters": schema}})
    spec = tool_grammar([move], "required", True, HERMES)
    text = '<tool_call>\n{{"name": "look", "arguments": {{"p": [{}]}}}}\n</tool_call>'
    assert accepts(spec, text.format("1, 2")) and not accepts(spec, text.format("1"))


def test_a_free_answer_has_a_grammar_only_where_a_function_is_strict():
    assert tool_grammar([LOOK, ADD], "auto", True, HERMES) is None
    assert tool_grammar([], None, True, HERMES) is None
    strict = [tool("look", True, at={"type": "boolean"}), ADD]
    assert tool_grammar(strict, "none", True, HERMES) is None
    spec = tool_grammar(strict, "auto", True, HERMES)
    assert accepts(spec, "just text") and accepts(spec, f"look {LOOKED}") and not accepts(spec, WRONG)


MESSAGES = [
    Message(role="user", content="go"),
    Message.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"at": true}'}}],
        }
    ),
    Message(role="tool", content="a tree", tool_call_id="c1"),
]


def test_a_template_with_tools_gets_arguments_as_objects():
    messages = template_messages(MESSAGES, [])
    assert messages[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": True}}}
    ]
    assert messages[2] == {"role": "tool", "content": "a tree", "tool_call_id": "c1"}
    assert template_messages([Message(role="developer", content="x", name="me")], []) == [
        {"role": "system", "content": "x", "name": "me"}
    ]


def test_a_template_without_tools_gets_them_as_text():
    described = LOOK.model_dump(exclude_none=True)
    messages = plain_messages(MESSAGES, [described])
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    listed = messages[0]["content"].split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed) == described
    assert parse(messages[2]["content"]) == [("look", {"at": True})]
    assert messages[3]["content"] == "<tool_response>\na tree\n</tool_response>"
    with_system = plain_messages([Message(role="system", content="Be kind."), MESSAGES[0]], [described])
    assert len(with_system) == 2 and with_system[0]["content"].startswith("Be kind.\n\nYou may call")
    assert plain_messages([MESSAGES[0]], []) == [{"role": "user", "content": "go"}]

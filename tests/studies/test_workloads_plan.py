"""What a plan's workload may say, and what it is told when it says something else."""

import pytest
from pydantic import TypeAdapter, ValidationError

from wholecurve.studies.serving.workloads.plan_parts import AgentsPlan, LengthsPlan, WorkloadPlan

UNION = TypeAdapter(WorkloadPlan)
LENGTHS = {"kind": "lengths", "prompt_tokens": [8, 16], "output_tokens": [4, 4]}
DOCUMENTS = {"kind": "documents", "document_tokens": [50, 60], "question_tokens": [4, 6], "answer_tokens": [2, 3]}
AGENTS = {
    "kind": "agents",
    "turns": [2, 4],
    "first_prompt_tokens": [20, 30],
    "reply_tokens": {"median": 8, "sigma": 0.5, "high": 40},
    "tool_result_tokens": [5, 50],
    "user_tokens": [3, 9],
}
TRACE = {"kind": "trace", "path": "a.jsonl"}


@pytest.mark.parametrize("document", [LENGTHS, DOCUMENTS, AGENTS, TRACE], ids=lambda document: document["kind"])
def test_a_workload_survives_being_written_and_read(document):
    plan = UNION.validate_python(document)
    assert plan.kind == document["kind"]
    assert UNION.validate_python(plan.model_dump(mode="json")) == plan
    assert UNION.validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize(
    "document, change, where, words",
    [
        (LENGTHS, {"prompt_tokens": [16, 8]}, "prompt_tokens", "runs backwards"),
        (LENGTHS, {"prompt_tokens": [0, 8]}, "prompt_tokens", "greater than or equal to 1"),
        (LENGTHS, {"prompt_tokens": [8]}, "prompt_tokens", "at least 2"),
        (LENGTHS, {"shared_prefix_tokens": 8}, "", "leave no token of its own"),
        (LENGTHS, {"prefix_groups": 2}, "", "only where shared_prefix_tokens"),
        (LENGTHS, {"output_tokens": {"median": 5, "sigma": 1, "low": 6, "high": 9}}, "output_tokens", "must rise"),
        (LENGTHS, {"colour": 1}, "colour", "not permitted"),
        (LENGTHS, {"prompts": "words"}, "prompts", "'ids', 'text' or 'messages'"),
        (DOCUMENTS, {"document_sizes": [5]}, "", "exactly one of them"),
        (DOCUMENTS, {"document_tokens": None}, "", "exactly one of them"),
        (AGENTS, {"turns": [3, 2]}, "turns", "runs backwards"),
        (AGENTS, {"think_s": [2.0, 1.0]}, "think_s", "runs backwards"),
        (AGENTS, {"think_s": [0.0, float("nan")]}, "think_s", "finite"),
        (AGENTS, {"tools": "coding"}, "", "need prompts: messages, not ids"),
        (AGENTS, {"tools": [{"name": "x"}], "prompts": "messages"}, "tools", "tool 0 must be"),
        (AGENTS, {"tool_share": 1.5}, "tool_share", "less than or equal to 1"),
        (
            AGENTS,
            {"subagents": {"probability": 0.5, "fan_out": [3, 1], "turns": [1, 1], "first_prompt_tokens": [5, 5]}},
            "fan_out",
            "runs backwards",
        ),
        (TRACE, {"window_s": [5, 5]}, "window_s", "is empty"),
        (TRACE, {"window_s": [5, 4]}, "window_s", "runs backwards"),
        (TRACE, {"format": "csv"}, "format", "'mooncake'"),
        (TRACE, {"speed_up": 0}, "speed_up", "greater than 0"),
        ({"kind": "chat"}, {}, "", "'lengths', 'documents', 'agents', 'trace'"),
    ],
)
def test_each_wrong_field_is_refused_by_name(document, change, where, words):
    with pytest.raises(ValidationError) as caught:
        UNION.validate_python({**document, **change})
    first = caught.value.errors()[0]
    assert where in ".".join(map(str, first["loc"]))
    assert words in first["msg"]
    assert len(caught.value.errors()) == 1


def test_the_longest_request_is_prompt_and_output_at_their_largest():
    assert UNION.validate_python(LENGTHS).longest_tokens == 16 + 4
    assert UNION.validate_python(DOCUMENTS).longest_tokens == 60 + 6 + 3
    sizes = {**DOCUMENTS, "document_tokens": None, "document_sizes": [30, 90, 10]}
    assert UNION.validate_python(sizes).longest_tokens == 90 + 6 + 3
    subagents = {"probability": 1, "fan_out": [1, 1], "turns": [1, 1], "first_prompt_tokens": [70, 70]}
    assert UNION.validate_python({**AGENTS, "system_tokens": 7}).longest_tokens == 7 + 30 + 40
    assert UNION.validate_python({**AGENTS, "subagents": subagents}).longest_tokens == 70 + 40
    assert UNION.validate_python(TRACE).longest_tokens is None


def test_waits_are_none_unless_the_plan_says_so():
    first, second = AgentsPlan(**AGENTS), AgentsPlan(**AGENTS)
    assert first.think_s == [0.0, 0.0] and first.tool_s == [0.0, 0.0]
    assert first.think_s is not second.think_s


def test_a_plan_does_not_change_once_it_is_read():
    with pytest.raises(ValidationError, match="frozen"):
        LengthsPlan(**LENGTHS).prompts = "text"

"""Plans in words: every number that a plan states is in them, for each kind of plan."""

from pathlib import Path

import pytest

from wholecurve.card.protocol import protocol_sentences, workload_sentences
from wholecurve.studies.plan import read_plan
from wholecurve.studies.serving.plan import ServingPlan, read_serving_plan

PLANS = Path(__file__).parents[2] / "plans"
SERVED = {
    "name": "served",
    "kind": "serving",
    "model": "m",
    "dtype": "bfloat16",
    "contenders": [{"name": "a", "server": "wholecurve"}, {"name": "b", "server": "vllm"}],
    "workload": {"kind": "lengths", "prompt_tokens": [8, 16], "output_tokens": [6, 12]},
    "load": {"closed": {"concurrency": [1, 2]}},
}


def words(document):
    plan = document["plan"]
    return " ".join([*protocol_sentences(document), *(text for _, text in workload_sentences(plan))])


def served(**changes):
    return words(ServingPlan.model_validate({**SERVED, **changes}).document())


def test_the_quick_plan_in_words():
    found = words(read_plan(PLANS / "quick.yaml").document())
    for said in (
        "1, 2, 4, 8, 16 requests always in flight, 3 for each",
        "64–128 random tokens in, 24–40 out",
        "3 repeats",
        "one prompt of 128, 256, 512, 1024 random tokens",
        "wholecurve again is wholecurve once more",
        "seed 20261130",
        "a fresh process",
        "24 greedy tokens",
    ):
        assert said in found


def test_the_race_plan_in_words():
    found = words(read_plan(PLANS / "peers_cpu.yaml").document())
    for said in (
        "1, 2, 4, 8, 16, 32, 64 requests start together",
        "128 random tokens in, 64 out",
        "5 repeats",
        "batch 1, batch 16, prefill 512: at most 6 settings",
        "until 4 have run",
    ):
        assert said in found


def test_the_serving_plans_in_words():
    found = words(read_serving_plan(PLANS / "serving_cpu.yaml").document())
    for said in (
        "a fresh server",
        "as token ids",
        "always in flight",
        "prefix caches that are off",
        "at least 30",
        "TTFT ≤",
        "×",
    ):
        assert said in found
    agents = words(read_serving_plan(PLANS / "agents_cpu.yaml").document())
    for said in (
        "agents, ",
        "sessions always in flight",
        "tool result tokens 16–320 (log-normal, median 80, sigma 0.6)",
        "subagents (probability 0.15, fan out 2–3",
        "a point's own requests alone fill",
    ):
        assert said in agents


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"load": {"open": {"rate_per_s": [0.5, 2]}}}, "open loop, 0.5, 2 arrivals per second (Poisson arrivals)"),
        (
            {"load": {"open": {"rate_per_s": [2], "arrivals": "constant", "ramp_s": 5}}},
            "(equal gaps), the first ones spread over 5 s",
        ),
        ({"load": {"open": {"rate_per_s": [2]}}, "requests": {"seconds": 60}}, "what arrives in 60 s, at least 30"),
        ({"load": {"sessions": {"concurrency": [4]}}}, "4 sessions always in flight"),
        ({"requests": {"seconds": 20, "at_most": 50}}, "starts sessions for 20 s; what runs then is finished"),
        (
            {"requests": {"per_slot": 5, "at_least": 40, "at_most": 90}},
            "5 sessions for each in flight, at least 40, at most 90",
        ),
        ({"prefix_cache": "warm"}, "filled before each point"),
        (
            {"contenders": [{"name": "far", "server": "running", "url": "http://h/v1", "device_kind": "H100"}]},
            "a fresh server for each contender in each, but for far",
        ),
        ({"servers": "one at a time"}, "One server runs at a time"),
        ({"slo": {"e2e_ms": 900, "share": 0.95}}, "95 % of requests, failed ones included, keep E2E ≤ 900 ms"),
        (
            {"slo": {"ttft_ms": 9}, "maximum_load": {"by": "concurrency", "low": 1, "high": 64}},
            "by bisection between 1 and 64",
        ),
        ({"workload": {**SERVED["workload"], "shared_prefix_tokens": 4}}, "4 of them shared on purpose"),
        ({"tuning": {"levels": [2], "contenders": {"b": {"grid": {"block_size": [16, 32]}}}}}, "b by block_size (2)"),
        (
            {"contenders": [SERVED["contenders"][0], {"name": "c", "server": "wholecurve", "control_of": "a"}]},
            "c is a once more",
        ),
        (
            {
                "workload": {
                    "kind": "documents",
                    "document_sizes": [512, 1024],
                    "question_tokens": [8, 8],
                    "answer_tokens": [4, 9],
                }
            },
            "documents, as token ids: document sizes 512–1,024, questions per document 1, question tokens 8, answer",
        ),
    ],
)
def test_what_a_serving_plan_states_is_said(changes, says):
    assert says in served(**changes)

"""What servers are given: the longest request of every repeat has to fit, and the model's window bounds it."""

from pathlib import Path

import pytest

from wholecurve.studies.serving.bench import Bench, ModelFacts
from wholecurve.studies.serving.demand import Demand, longest_tokens, within
from wholecurve.studies.serving.plan import ServingPlan

AGENTS = {
    "kind": "agents", "turns": [2, 6], "first_prompt_tokens": [20, 60], "reply_tokens": [4, 8],
    "tool_result_tokens": [10, 200], "user_tokens": [4, 8],
}  # fmt: skip


def bench_of(window=4096, **fields):
    plan = {
        "name": "p", "kind": "serving", "model": "m", "dtype": "float32", "repeats": 4,
        "contenders": [{"name": "a", "server": "wholecurve"}],
        "workload": AGENTS, "load": {"sessions": {"concurrency": [1, 3]}}, "requests": {"at_least": 4, "per_slot": 2},
        **fields,
    }  # fmt: skip
    return Bench(ServingPlan.model_validate(plan), None, ModelFacts(1000, window), 2, Path("logs"))


def test_the_longest_request_of_every_repeat_fits():
    bench = bench_of()
    lengths = {point.repeat: 0 for point in bench.levels}
    for point in bench.levels:
        lengths[point.repeat] = max(lengths[point.repeat], longest_tokens(bench.prepared(point).sessions))
    assert sorted(lengths) == [1, 2, 3, 4] and len(set(lengths.values())) > 1, "repeats differ"
    assert bench.demand.sequence_tokens == max(lengths.values()) + 64


def test_tuning_draws_other_prompts_so_the_longest_that_may_come_fits():
    lengths = {"kind": "lengths", "prompt_tokens": [10, 900], "output_tokens": [4, 80]}
    tuning = {"levels": [1], "contenders": {"a": {"grid": {"overlap": [True]}}}}
    closed = {"workload": lengths, "load": {"closed": {"concurrency": [1]}}}
    assert bench_of(**closed).demand.sequence_tokens < 980 + 64
    assert bench_of(**closed, tuning=tuning).demand.sequence_tokens == 980 + 64
    agents = bench_of(load={"sessions": {"concurrency": [1]}}, tuning=tuning)
    assert agents.demand.sequence_tokens == 4096, "how far agents grow is bound by the window alone"


@pytest.mark.parametrize(("window", "sequence"), [(None, 164), (120, 120)])
def test_no_server_is_asked_for_more_than_the_models_window(window, sequence):
    assert within(Demand(2, 90, 100), 100, window) == Demand(2, sequence, sequence)
    assert within(Demand(2, 90, 1000), 0, None) == Demand(2, 90, 1000)

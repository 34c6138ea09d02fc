"""vLLM and llama.cpp as contenders, on the real model; skipped where a peer is not set up.

Slow part: vLLM takes about 20 s to start, without its compiler.
"""

import pytest

from wholecurve.files import read_json
from wholecurve.models.config import config_from_hf
from wholecurve.studies.agreement import disagreement, judged, score_greedy
from wholecurve.studies.peers import PEERS
from wholecurve.studies.plan import Plan
from wholecurve.studies.session import Bench

pytestmark = pytest.mark.real_model


def plan_of(name):
    return Plan.model_validate(
        {
            "name": "p", "model": "smollm2-135m-instruct", "threads": 1,
            "contenders": [{"name": name, "engine": name}],
            "batch": {"concurrency": [1, 3], "prompt_tokens": 24, "output_tokens": 8, "min_requests": 2},
            "prefill": {"step_tokens": [64], "requests": 2},
        }
    )  # fmt: skip


@pytest.fixture(params=[("llama.cpp", {}), ("llama.cpp", {"unified_cache": True, "ubatch_tokens": 32}),
                        ("vllm", {"compile": "off"})], ids=str)  # fmt: skip
def session(request, real_model_files, tmp_path):
    name, settings = request.param
    if not PEERS[name].is_ready:
        pytest.skip(f"peer {name} is not set up: `wholecurve peers setup {name}`")
    plan = plan_of(name)
    config = config_from_hf(read_json(real_model_files.hf_folder() / "config.json"), "config.json")
    bench = Bench(plan, real_model_files, config, 1, tmp_path / "logs")
    with bench.start(plan.contenders[0], settings) as session:
        yield session


@pytest.mark.timeout(280)
def test_it_runs_the_same_model_and_gives_what_was_asked_for(session, real_model_files):
    folder = real_model_files.hf_folder()
    summary = judged(session.generate, lambda sequences: score_greedy(str(folder), sequences), folder, 6)
    assert disagreement(summary, session.bench.plan.agreement) is None
    assert summary["max_gap"] < 0.25
    described = session.described
    assert described["dtype"] == "bfloat16" and described["threads"] == 1 and described["prefix_cache"] is False
    row, traces = session.measure("batch", 3, 1)
    assert [t.output_tokens for t in traces] == [8] * 3 and row["output_throughput_tok_per_s"] > 0
    row, traces = session.measure("batch", 1, 1)
    assert [t.output_tokens for t in traces] == [8] * 2
    row, traces = session.measure("prefill", 64, 1)
    assert row["input_tokens"] == 128 and row["cached_input_tokens"] == 0
    assert row["peak_rss_bytes"] > 200 * 2**20

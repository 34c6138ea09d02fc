"""What the ceilings allow a server under a closed loop, and for which loads there is no such formula."""

import copy

import pytest

from wholecurve.models.bounds import Ceilings, decode_bound
from wholecurve.models.config import ModelConfig
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import above_bound, run_bounds

CONFIG = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_layers": 2, "num_heads": 4,
    "num_kv_heads": 2, "head_dim": 16, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_position": 512,
    "tie_word_embeddings": True, "eos_token_ids": [1],
}  # fmt: skip
PLAN = {
    "kind": "serving", "dtype": "bfloat16", "prefix_cache": "off",
    "workload": {"kind": "lengths", "prompt_tokens": [96, 160], "output_tokens": [32, 48]},
    "load": {"closed": {"concurrency": [4, 1]}, "sessions": None, "open": None},
}  # fmt: skip


def run_of(tmp_path, plan, ceilings=True, rows=()):
    run = RunFolder.create(tmp_path / "run", {"plan": plan, "harness_version": 1, "plan_hash": "x"}, {})
    run.write("model", {"name": "m", "config": CONFIG})
    if ceilings:
        run.write("ceilings", {"read_bytes_per_s": 1e9, "gemm_flops_per_s": 1e10})
    for place, row in enumerate(rows):
        run.write_point(f"p{place}", {"order": place, "workload": "serving", "repeat": 1, **row}, [])
    return run


def test_a_closed_loop_without_a_cache_is_bounded_as_decode_of_its_mean_lengths(tmp_path):
    bounds = run_bounds(run_of(tmp_path, PLAN), "serving").set_index("load")
    config = ModelConfig(**{**CONFIG, "eos_token_ids": (1,)})
    assert list(bounds.index) == [1, 4]
    for load in (1, 4):
        wanted = decode_bound(config, Ceilings(1e9, 1e10), 2, load, 128, 40)
        assert bounds.loc[load, list(wanted)].to_dict() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("prefix_cache",), "cold"),
        (("workload", "kind"), "agents"),
        (("workload", "prompt_tokens"), {"median": 96, "sigma": 1, "low": 1, "high": 200}),
        (("load", "closed"), None),
    ],
)
def test_other_loads_have_none(tmp_path, where, value):
    plan = copy.deepcopy(PLAN)
    part = plan
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    assert run_bounds(run_of(tmp_path, plan), "serving").empty


def test_without_ceilings_there_is_none(tmp_path):
    assert run_bounds(run_of(tmp_path, PLAN, ceilings=False), "serving").empty


def test_a_server_above_its_bound_is_named(tmp_path):
    fast = {"contender": "a", "load": 4, "output_throughput_tok_per_s": 1e9, "decode_speed_tok_per_s": 1.0}
    (found,) = above_bound(run_of(tmp_path, PLAN, rows=[fast]))
    assert found.startswith("a, serving 4, repeat 1: output_throughput_tok_per_s is ")

"""Conditions under which a ratio is refused, allowed with --across, or said to be unchecked."""

import pandas as pd
import pytest

from wholecurve.curves import Curve
from wholecurve.curves.gates.conditions import check_alike, differences
from wholecurve.errors import UserError


def curve(name="a", workload="1024 in / 128 out", **changes):
    columns = {
        "contender": name, "workload": workload, "load_kind": "concurrency", "load": [1, 8],
        "repeat": 1, "devices": 1, "device_kind": "gpu",
        "decode_speed_tok_per_s": [100.0, 60.0],
        "output_throughput_tok_per_s": [95.0, 450.0],
        "model": "Qwen/Qwen3-8B", "precision": "bf16", "hardware": "H100",
        "speed_from": "median TPOT", "window": "full",
        "mean_input_tokens": 1024.0, "mean_output_tokens": 128.0,
    }  # fmt: skip
    return Curve.from_points(pd.DataFrame(columns | changes), workload=(columns | changes)["workload"])


def test_alike_curves_pass_in_silence():
    assert check_alike(curve("a"), curve("b"), across=False) == []


@pytest.mark.parametrize(
    "spelling", [{"model": "qwen3-8b"}, {"precision": "bfloat16"}, {"hardware": "h100"}, {"window": "steady"}]
)
def test_another_spelling_is_no_difference(spelling):
    assert differences(curve("a"), curve("b", **spelling)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "Qwen/Qwen3-14B"}, "model (Qwen/Qwen3-8B against Qwen/Qwen3-14B)"),
        ({"precision": "fp8"}, "precision (bf16 against fp8)"),
        ({"hardware": "B200"}, "hardware (H100 against B200)"),
        ({"workload": "4096 in / 128 out"}, "workload (1024 in / 128 out against 4096 in / 128 out)"),
        ({"mean_input_tokens": 1200.0}, "workload (1024 input tokens a request against 1200 input tokens a request)"),
        ({"mean_output_tokens": 64.0}, "workload (128 output tokens"),
        ({"speed_from": "mean TPOT"}, "definition: decode speed is computed from (median TPOT against mean TPOT)"),
        ({"window": "decode phase"}, "definition: throughput is over (the run against decode phase)"),
    ],
)
def test_a_difference_is_refused_and_with_across_it_is_named(change, says):
    with pytest.raises(UserError) as refused:
        check_alike(curve("a"), curve("b", **change), across=False)
    assert says in str(refused.value) and "--across" in str(refused.value)
    (finding,) = check_alike(curve("a"), curve("b", **change), across=True)
    assert finding.gate == "conditions-differ" and says in finding.text


def test_mean_lengths_may_jitter_by_a_tenth():
    assert differences(curve("a"), curve("b", mean_input_tokens=1100.0)) == []
    assert len(differences(curve("a"), curve("b", mean_input_tokens=1140.0))) == 1


def test_what_is_not_stated_is_said_and_not_taken_for_a_difference():
    unstated = curve("b", "decode", model=None, hardware=None)
    (finding,) = check_alike(curve("a"), unstated, across=False)
    assert str(finding).startswith("conditions-unstated: B (b) does not state model, hardware")


@pytest.mark.parametrize("kind", ["server", "cpu"])
def test_different_denominators_are_refused_even_across(kind):
    for across in (False, True):
        with pytest.raises(UserError, match=r"a is per GPU, b is per .*--gpus-a"):
            check_alike(curve("a"), curve("b", device_kind=kind), across)

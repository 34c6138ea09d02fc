"""The honesty gates of one curve: each finds its own fault, is silent on a clean curve, and knows when it is blind."""

from pathlib import Path

import pandas as pd
import pytest

from wholecurve.curves import Curve
from wholecurve.curves.gates.one_curve import GATES, check_curve, unchecked_gates

CLEAN = {
    "load": [1, 8, 1, 8],
    "repeat": [1, 1, 2, 2],
    "decode_speed_tok_per_s": [100.0, 60.0, 101.0, 61.0],
    "output_throughput_tok_per_s": [95.0, 450.0, 96.0, 451.0],
    "n_completed": [40, 320, 40, 320],
    "n_failed": [0, 0, 0, 0],
    "ttft_p90_ms": [20.0, 30.0, 20.0, 30.0],
    "ttft_p99_ms": [None, 40.0, None, 40.0],
    "tpot_p50_ms": [10.0, 16.7, 9.9, 16.4],
    "achieved_concurrency": [0.95, 7.9, 0.96, 7.8],
    "cache_hit_rate": [0.0, 0.0, 0.0, 0.0],
    "client_lag_ms": [0.1, 0.1, 0.1, 0.2],
    "configuration": ["tp1"] * 4,
}


def curve(**changes):
    fixed = {"contender": "a", "workload": "decode", "load_kind": "concurrency", "devices": 1, "device_kind": "gpu"}
    columns = {name: values for name, values in (CLEAN | changes).items() if values is not None}
    frame = pd.DataFrame(columns).assign(**(fixed | {k: columns[k] for k in fixed if k in columns}))
    return Curve.from_points(frame, workload=frame["workload"].iloc[0])


def gates(found):
    return [finding.gate for finding in found]


def test_a_clean_curve_passes_every_gate_and_every_gate_could_look():
    assert check_curve("A", curve()) == []
    assert unchecked_gates(curve()) == []


FAULTS = {
    "single-run": {"load": [1, 8, 2, 4], "decode_speed_tok_per_s": [100, 60, 90, 80], "repeat": [1, 1, 1, 1]}
    | {"output_throughput_tok_per_s": [95, 450, 170, 300], "achieved_concurrency": [1, 8, 2, 4]}
    | {"n_completed": [400] * 4, "tpot_p50_ms": [10] * 4},
    "occupancy": {"output_throughput_tok_per_s": [95.0, 550.0, 96.0, 551.0]},
    "littles-law": {"achieved_concurrency": [0.95, 4.0, 0.96, 4.1]},
    "failures": {"n_failed": [0, 3, 0, 0]},
    "few-requests": {"n_completed": [29, 320, 29, 320]},
    "not-monotone": {
        "decode_speed_tok_per_s": [100.0, 104.0, 101.0, 105.0],
        "output_throughput_tok_per_s": [95, 800, 96, 800],
    },
    "mixed-denominators": {"devices": [1, 2, 1, 2], "output_throughput_tok_per_s": [95.0, 450.0, 96.0, 451.0]},
    "composite": {"configuration": ["tp1", "tp2", "tp1", "tp2"]},
    "cached-tokens": {"cache_hit_rate": [0.0, 0.93, 0.0, 0.95]},
    "client-lag": {"client_lag_ms": [0.1, 1.0, 0.1, 1.1]},
}


@pytest.mark.parametrize("gate", FAULTS)
def test_each_gate_finds_its_own_fault_and_no_other(gate):
    assert set(gates(check_curve("A", curve(**FAULTS[gate])))) == {gate}


def test_every_gate_has_a_fault_in_this_file():
    assert set(FAULTS) == set(GATES)


BLIND = {
    "littles-law": "achieved_concurrency",
    "failures": "n_failed",
    "few-requests": "n_completed",
    "cached-tokens": "cache_hit_rate",
    "client-lag": "client_lag_ms",
    "composite": "configuration",
}


@pytest.mark.parametrize(("gate", "column"), BLIND.items())
def test_a_gate_without_its_numbers_is_blind_and_not_green(gate, column):
    assert gate in unchecked_gates(curve(**{column: None}))
    if column != "configuration":
        assert gate in unchecked_gates(curve(**{column: [None] * 4}))


def test_zero_failures_are_checked_and_missing_ones_are_not():
    assert "failures" not in unchecked_gates(curve(n_failed=[0, 0, 0, 0]))
    assert "failures" in unchecked_gates(curve(n_failed=None))


@pytest.mark.parametrize(("share", "found"), [(0.79, True), (0.81, False), (1.09, False), (1.11, True)])
def test_littles_law_holds_within_its_limits(share, found):
    off = curve(achieved_concurrency=[share, 8 * share, share, 8 * share])
    assert ("littles-law" in gates(check_curve("A", off))) is found


@pytest.mark.parametrize(("throughput", "says"), [(1.06, "above"), (1.04, None), (0.51, None), (0.49, "below")])
def test_occupancy_has_two_limits(throughput, says):
    values = [100 * throughput, 8 * 60 * throughput, 101 * throughput, 8 * 61 * throughput]
    texts = [f.text for f in check_curve("A", curve(output_throughput_tok_per_s=values)) if f.gate == "occupancy"]
    assert len(texts) == (says is not None) and all(says in text for text in texts)


def test_a_percentile_without_enough_requests_names_its_loads():
    (finding,) = check_curve("A", curve(n_completed=[40, 200, 40, 200]))
    assert "prints p99 from fewer than 300 completed requests at load 8" in finding.text


def test_exactly_enough_requests_carry_their_percentile():
    assert check_curve("A", curve(n_completed=[30, 300, 30, 300])) == []


def test_open_loop_and_prefill_curves_have_no_occupancy_to_check():
    assert {"occupancy", "littles-law"} <= set(unchecked_gates(curve(load_kind=["request_rate"] * 4)))


def test_agentic_loads_count_sessions_and_not_requests():
    agentic = curve(workload=["agentic-coding"] * 4, achieved_concurrency=[0.2, 1.0, 0.2, 1.0])
    assert {"occupancy", "littles-law"} <= set(unchecked_gates(agentic))
    assert check_curve("A", agentic) == []


def test_the_readme_explains_every_gate():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert [gate for gate in GATES if f"`{gate}`" not in text] == []

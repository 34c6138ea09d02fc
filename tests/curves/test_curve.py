"""A curve takes only points that mean something, keeps every repeat, and names what it refuses."""

import math

import pandas as pd
import pytest
from curve_builders import curve, frame

from wholecurve.curves import Curve
from wholecurve.errors import UserError


def test_throughput_is_per_device_and_speed_is_not():
    made = curve("a", [1, 2], [100, 80], [400, 640], devices=4)
    assert made.points["throughput"].tolist() == [100, 160]
    assert made.points["speed"].tolist() == [100, 80]


def test_by_load_is_the_geometric_mean_over_repeats():
    made = curve("a", [8, 8, 2], [50, 200, 300], [10, 40, 7], repeats=[1, 2, 1])
    assert made.by_load().to_dict("list") == {
        "load": [2, 8],
        "speed": pytest.approx([300, 100]),
        "throughput": pytest.approx([7, 20]),
        "repeats": [1, 2],
    }
    assert made.points["load"].tolist() == [2, 8, 8]


def test_prefill_curves_have_input_throughput_and_no_speed():
    rows = pd.DataFrame(
        {
            "contender": "a",
            "workload": "prefill",
            "load_kind": "step_tokens",
            "load": [512, 1024],
            "repeat": 1,
            "devices": 2,
            "input_throughput_tok_per_s": [1000.0, 1600.0],
        }
    )
    made = Curve.from_points(rows, workload="prefill")
    assert not made.has_speed
    assert made.by_load()["throughput"].tolist() == pytest.approx([500, 800])
    assert made.by_load()["speed"].isna().all()


@pytest.mark.parametrize("field", ["decode_speed_tok_per_s", "output_throughput_tok_per_s", "load", "devices"])
@pytest.mark.parametrize("value", [0.0, -5.0, math.nan, math.inf, "OOM"])
def test_a_number_that_is_none_is_refused_by_contender_load_and_field(field, value):
    rows = frame("vllm", [4, 8], [100, 80], [400, 640]).astype({field: object})
    rows.loc[1, field] = value
    where = "load 8" if field != "load" else f"load {value}"
    with pytest.raises(UserError, match=f"vllm, {where}, repeat 1: {field} is {value}"):
        Curve.from_points(rows)


def test_a_load_and_repeat_twice_is_refused():
    with pytest.raises(UserError, match="vllm, load 8: repeat 1 occurs twice"):
        curve("vllm", [8, 8, 16], [50, 48, 30], [400, 390, 480])


def test_contender_is_picked_or_asked_for():
    both = pd.concat([frame("a", [1], [10], [10]), frame("b", [1], [20], [20])])
    assert Curve.from_points(both, "b").points["speed"].tolist() == [20]
    with pytest.raises(UserError, match="several contenders: a, b"):
        Curve.from_points(both)
    with pytest.raises(UserError, match="no points of contender 'c'; the frame has a, b"):
        Curve.from_points(both, "c")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"workload": "chat"}, "no points of workload 'decode'; the frame has chat"),
        ({"load_kind": ["concurrency", "step_tokens"]}, "load_kind mixes concurrency, step_tokens"),
        ({"device_kind": ["cpu", "gpu"]}, "device_kind mixes cpu, gpu"),
    ],
)
def test_what_does_not_belong_on_one_curve_is_refused(change, says):
    with pytest.raises(UserError, match=says):
        Curve.from_points(frame("a", [1, 2], [10, 9], [10, 18]).assign(**change))


@pytest.mark.parametrize("column", ["load", "repeat", "devices", "decode_speed_tok_per_s", "contender"])
def test_a_missing_column_is_named(column):
    with pytest.raises(UserError, match=f"column {column} is missing"):
        Curve.from_points(frame("a", [1], [10], [10]).drop(columns=column))


def test_an_empty_frame_is_refused():
    with pytest.raises(UserError, match="no points"):
        Curve.from_points(frame("a", [], [], []))

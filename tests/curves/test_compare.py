"""A whole comparison: rows, summary, warnings, document and tables."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from curve_builders import GRID, analytic, curve, frame, noisy
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.curves import (
    Curve,
    capacity_gain,
    compare,
    cost_cut,
    direct_table,
    gain_text,
    multiplier_text,
    same_speed_table,
    same_throughput_table,
    summarise,
    summary_table,
)
from wholecurve.curves.readings import DIRECT_COLUMNS, MATCHED_COLUMNS
from wholecurve.errors import UserError


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), repeats=st.integers(1, 4))
def test_swapping_inverts_every_direct_ratio_and_interval(seed, repeats):
    rng = np.random.default_rng(seed)
    a, b = (noisy(name, s0, 20, rng, 0.05, repeats, GRID[:4]) for name, s0 in (("a", 120), ("b", 90)))
    forth, back = compare(a, b).direct, compare(b, a).direct
    for one, other in (
        ("ratio", "ratio"),
        ("low", "high"),
        ("speed_ratio", "speed_ratio"),
        ("speed_low", "speed_high"),
    ):
        product = forth[one] * back[other]
        assert product.dropna().to_numpy() == pytest.approx(1, rel=1e-12)
        assert product.notna().all() == (repeats >= 3 or "ratio" in one)


def test_direct_ratios_are_plain_divisions_and_both_are_kept():
    found = compare(curve("a", [1, 8], [100, 60], [100, 300]), curve("b", [1, 8], [50, 40], [25, 100])).direct
    assert found["ratio"].tolist() == pytest.approx([4, 3])
    assert found["speed_ratio"].tolist() == pytest.approx([2, 1.5])
    assert found["n"].tolist() == [1, 1] and found["low"].isna().all()
    assert found["floor"].isna().all() and found["verdict"].tolist() == ["undecided"] * 2


def test_a_load_that_only_one_has_is_not_measured_directly():
    found = compare(curve("a", [1, 8], [100, 60], [100, 300]), curve("b", [8, 16], [50, 40], [200, 300]))
    assert found.direct["refused"].tolist() == [
        "B (b) was not measured at load 1",
        None,
        "A (a) was not measured at load 16",
    ]
    assert found.direct["verdict"].tolist() == ["not measured", "undecided", "not measured"]
    assert any("only A (a) has 1, only B (b) has 16; direct ratios exist at 8" in w for w in found.warnings)


def test_every_point_of_b_gets_a_row_and_stated_targets_follow():
    found = compare(analytic("a", 130, 20), analytic("b", 100, 15), at_speed=[50, 500], at_throughput=[700])
    assert tuple(found.same_speed) == tuple(found.same_throughput) == MATCHED_COLUMNS
    assert tuple(found.direct) == DIRECT_COLUMNS
    rows = found.same_speed
    assert rows["load_b"].tolist()[:8] == list(GRID) and rows["load_b"].isna().tolist()[8:] == [True, True]
    assert rows["stated"].tolist() == [False] * 8 + [True] * 2
    assert rows["speed"].tolist()[8:] == [50, 500]
    at_50 = rows.iloc[8]
    assert at_50.throughput == pytest.approx(15 * 50, rel=0.005)
    assert at_50.throughput_a == pytest.approx(20 * (130 / 50 - 1) * 50, rel=0.005)
    assert rows.iloc[9].verdict == "not measured" and "not extrapolated" in rows.iloc[9].refused
    assert rows.iloc[9].isna()[["estimate", "low", "high", "bracket_low", "floor", "load_a"]].all()
    # B's own operating point stays on the row even where the reading is refused.
    assert rows.iloc[7].speed == pytest.approx(100 / (1 + 128 / 15)) and rows.iloc[7].refused
    assert len(found.same_throughput) == 9 and found.same_throughput.iloc[8].throughput == 700


def test_a_stated_target_on_a_measured_point_of_b_names_its_load():
    found = compare(analytic("a", 130, 20), analytic("b", 100, 16), at_speed=[50]).same_speed
    assert found.iloc[8].load_b == 16 and found.iloc[8].estimate == found.iloc[4].estimate


def test_the_verdict_of_a_matched_row_respects_bracket_and_interval():
    a, b = curve("a", [1, 4], [100, 25], [100, 200]), curve("b", [2, 3], [50, 40], [150, 140])
    row = compare(a, b).same_speed.iloc[0]
    assert row.bracket_low < 1 < row.bracket_high and row.verdict == "no difference shown"


def test_summary_keeps_the_operating_points():
    rows = pd.DataFrame(
        {
            "estimate": [2.0, np.nan, 8.0, 1.0, 4.0],
            "refused": [None, "why", None, None, None],
            "verdict": ["A ahead"] * 5,
            "load_a": 1.0,
            "load_b": [1.0, 2, 4, 8, 16],
            "speed": 5.0,
            "throughput": 6.0,
            "stated": False,
        }
    )
    found = summarise(rows, "estimate")
    assert (found["read"], found["refused"], found["verdicts"]) == (4, 1, {"A ahead": 4})
    assert (found["min"]["value"], found["max"]["value"]) == pytest.approx((1, 8))
    assert found["min"]["points"] == [{"load_a": 1, "load_b": 8, "speed": 5, "throughput": 6}]
    assert found["median"]["value"] == pytest.approx(8**0.5)
    assert [p["load_b"] for p in found["median"]["points"]] == [1, 16]
    rows.loc[0, "stated"] = True
    assert summarise(rows, "estimate")["median"] == {
        "value": pytest.approx(4),
        "points": [{"load_a": 1, "load_b": 16, "speed": 5, "throughput": 6}],
    }


def test_no_overlap_is_not_measured_anywhere():
    found = compare(curve("a", [1, 2], [200, 150], [200, 300]), curve("b", [1, 2], [50, 40], [50, 80]))
    assert found.summary["same_speed"]["median"] is None and found.summary["overlap_speed"] is None
    assert found.same_speed["estimate"].isna().all() and found.same_speed["refused"].notna().all()


def warned(a, b, text):
    return any(text in w for w in compare(a, b).warnings)


GOOD = {"loads": [1, 8], "speeds": [100, 60], "throughputs": [95, 450], "repeats": [1, 1]}
THREE = {
    "loads": [1, 8] * 3,
    "speeds": [100, 60] * 3,
    "throughputs": [95, 450] * 3,
    "repeats": [1, 1, 2, 2, 3, 3],
}


def test_a_clean_comparison_has_no_warnings():
    assert compare(curve("a", **THREE), curve("b", **THREE)).warnings == []


@pytest.mark.parametrize(
    "change, says",
    [
        ({"throughputs": [106, 450]}, "A (a) has occupancy 1.06 at load 1 (above 1.05 at load 1)"),
        ({"throughputs": [95, 200]}, "A (a) has occupancy 0.42 at load 8 (below 0.5 at load 8)"),
        ({"occupancy": [1.2, None]}, "A (a) has occupancy 1.20 at load 1"),
        ({"n_failed": [0, 3]}, "A (a) has 3 failed requests (load 8)"),
        ({}, "A (a) has a single run at every load: n = 1, no interval"),
        ({"device_kind": "cpu"}, "mixed-denominators: per-device numbers differ: A (a) is per cpu, B (b) per gpu"),
        ({"devices": [4, 4]}, "A (a) runs on 4 devices, B (b) on 1"),
        ({"devices": [1, 2]}, "A (a) mixes numbers of devices (1, 2)"),
        ({"source": "published"}, "sources-differ: A (a) is published, B (b) is measured (gpu)"),
        ({"window": "full"}, "windows-differ"),
        ({"speeds": [60, 100]}, "A (a) is not monotone: speed rises with load at load 8"),
        ({"throughputs": [95, 90]}, "A (a) is not monotone: throughput falls with load at load 8"),
        ({"loads": [1, 4]}, "loads-differ"),
        (
            {"loads": [1, 8], "repeats": [1, 2]},
            "repeats are paired by number: A has 1, 2, B has 1, 2, 3; only 1, 2 is used",
        ),
    ],
)
def test_warnings(change, says):
    assert warned(curve("a", **(GOOD | change)), curve("b", **THREE), says)
    assert not warned(curve("a", **THREE), curve("b", **THREE), says)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"at_speed": [0]}, "target speed is 0"),
        ({"at_throughput": [math.nan]}, "target throughput is nan"),
        ({"at_speed": [math.inf]}, "target speed is inf"),
        ({"confidence": 95}, "confidence is 95"),
    ],
)
def test_senseless_arguments_are_refused(arguments, says):
    with pytest.raises(UserError, match=says):
        compare(curve("a", **GOOD), curve("b", **GOOD), **arguments)


def test_curves_that_share_no_repeat_are_refused():
    with pytest.raises(UserError, match=r"a has repeats \[1\], b has \[2\]"):
        compare(curve("a", **GOOD), curve("b", **(GOOD | {"repeats": [2, 2]})))


def test_occupancy_counts_all_devices():
    four = GOOD | {"throughputs": [95, 450], "devices": [4, 4]}
    assert not warned(curve("a", **four), curve("b", **GOOD), "occupancy")


def test_a_repeat_that_only_one_has_moves_nothing():
    b = curve("b", [1, 4], [90, 60], [80, 200])
    a = {"loads": [1, 4], "speeds": [100, 50], "throughputs": [100, 300]}
    more = curve("a", [1, 4, 1, 4], [100, 50, 300, 20], [100, 300, 900, 950], repeats=[1, 1, 2, 2])
    plain, with_more = compare(curve("a", **a), b), compare(more, b)
    assert with_more.same_speed.equals(plain.same_speed) and with_more.direct.equals(plain.direct)


def prefill(name, values):
    rows = pd.DataFrame(
        {
            "contender": name,
            "workload": "prefill",
            "load_kind": "step_tokens",
            "load": [512, 1024],
            "repeat": 1,
            "devices": 1,
            "input_throughput_tok_per_s": values,
        }
    )
    return Curve.from_points(rows, workload="prefill")


def test_prefill_curves_have_direct_ratios_only():
    found = compare(prefill("a", [3000.0, 4000.0]), prefill("b", [2000.0, 1000.0]))
    assert found.direct["ratio"].tolist() == pytest.approx([1.5, 4])
    assert found.direct[["speed", "speed_ratio", "speed_low"]].isna().all(axis=None)
    assert found.same_speed.empty and found.same_throughput.empty
    assert found.to_document()["direct"][0]["speed"] is None
    assert "speed A/B" not in direct_table(found)
    with pytest.raises(UserError, match="prefill curves have no speed"):
        compare(prefill("a", [1.0, 2.0]), prefill("b", [1.0, 2.0]), at_throughput=[1.5])
    with pytest.raises(UserError, match="over step_tokens, b over concurrency"):
        compare(prefill("a", [1.0, 2.0]), curve("b", **GOOD))


def test_the_document_is_json_with_the_agreed_keys():
    found = compare(analytic("a", 130, 20), analytic("b", 100, 15), at_speed=[50])
    document = found.to_document()
    assert set(document) == {"a", "b", "direct", "same_speed", "same_throughput", "summary", "warnings"}
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["a"], document["b"]) == ("a", "b")
    assert document["same_speed"][8]["load_b"] is None and document["same_speed"][0]["low"] is None
    assert document["same_speed"][7]["refused"] and document["same_speed"][7]["estimate"] is None
    assert document["direct"][0]["ratio"] == found.direct["ratio"][0]


def test_points_are_read_from_a_frame_of_several_contenders():
    rows = pd.concat([frame("a", [1, 8], [100, 60], [100, 300]), frame("b", [1, 8], [50, 40], [25, 100])])
    found = compare(Curve.from_points(rows, "a"), Curve.from_points(rows, "b"))
    assert found.direct["ratio"].tolist() == pytest.approx([4, 3])


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((1.4211, 1.3802, 1.4704, 5), "1.42× [1.38, 1.47]"),
        ((1.4211, None, None, 1), "1.42× (n = 1, no interval)"),
        ((1.4211, math.nan, math.nan, 2), "1.42× (n = 2, no interval)"),
        ((None,), "not measured"),
        ((math.nan,), "not measured"),
        ((2.0,), "2.00×"),
    ],
)
def test_multipliers_as_text(arguments, text):
    assert multiplier_text(*arguments) == text


def test_tables_say_what_was_read_and_why_not():
    rng = np.random.default_rng(3)
    found = compare(noisy("a", 130, 20, rng, 0.01, 3), noisy("b", 100, 15, rng, 0.01, 3), at_speed=[50])
    direct, speed, throughput = direct_table(found), same_speed_table(found), same_throughput_table(found)
    row = found.same_speed.iloc[3]
    assert speed["A/B"][3] == f"{row.estimate:.2f}× [{row.low:.2f}, {row.high:.2f}]"
    assert speed["bracket"][3] == f"{row.bracket_low:.2f}–{row.bracket_high:.2f}"
    assert speed["at least"][3] == f"{row.floor:.2f}×"
    assert speed["A/B"][7] == "not measured" and "not extrapolated" in speed["verdict"][7]
    assert speed["load of B"].tolist()[7:] == ["128", "stated target"]
    assert direct["throughput A/B"].str.contains(r"× \[").all() and len(throughput) == 8
    summary = summary_table(found)
    assert summary["multiplier"].tolist() == [
        "direct, throughput",
        "direct, speed",
        "same speed",
        "same throughput",
    ]
    assert summary["refused"].tolist() == [0, 0, 1, 1]


def test_capacity_gain_and_cost_cut_go_together():
    assert (capacity_gain(2.2), cost_cut(2.2)) == pytest.approx((1.2, 1 - 1 / 2.2))
    assert gain_text(2.2) == "+120 % capacity, 54.5 % lower cost"
    assert gain_text(0.8) == "-20 % capacity, 25.0 % higher cost"
    for senseless in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError):
            capacity_gain(senseless)
        with pytest.raises(UserError):
            cost_cut(senseless)

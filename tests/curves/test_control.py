"""An A/A control bounds what may be called a difference."""

import json
import math

import pytest
from curve_builders import GRID, analytic, curve

from wholecurve.curves import Curve, compare, direct_table, same_speed_table, same_throughput_table, summary_table
from wholecurve.errors import UserError

B = analytic("b", 100, 16)


def shifted(name, gain, speed_gain=1.0):
    """Curve B with its throughput and speed multiplied: every direct and same-speed ratio to B is known."""
    points = B.points.assign(throughput=B.points["throughput"] * gain, speed=B.points["speed"] * speed_gain)
    return Curve(name, B.workload, B.load_kind, points)


def three(made, wobble=(0.999, 1.0, 1.001)):
    """The same curve as three repeats that hardly differ, so that intervals are narrow."""
    rows = [
        (row.load, row.speed * w, row.throughput * w, repeat)
        for repeat, w in enumerate(wobble, 1)
        for row in made.points.itertuples()
    ]
    load, speed, throughput, repeat = map(list, zip(*rows, strict=True))
    return curve(made.name, load, speed, throughput, repeats=repeat)


@pytest.mark.parametrize("gain", [1.05, 1 / 1.05])
def test_a_control_gives_one_symmetric_bound_per_multiplier(gain):
    found = compare(shifted("a", 1.2), B, control=compare(shifted("b again", gain, 1.0), B)).summary["control"]
    assert found["name"] == "b again over b"
    for multiplier in ("direct", "same_speed"):
        assert found[multiplier]["bound"] == pytest.approx(1.05, rel=1e-6)
        assert (found[multiplier]["low"], found[multiplier]["high"]) == pytest.approx((gain, gain), rel=1e-6)
    assert found["direct_speed"] == {"low": 1.0, "high": 1.0, "bound": 1.0}


def test_the_bound_is_the_larger_deviation_of_either_sign():
    again = curve("again", [1, 8, 64], [100, 60, 20], [95.0, 330.0, 1000.0])
    first = curve("first", [1, 8, 64], [100, 60, 20], [100.0, 300.0, 1000.0])
    bound = compare(B, B, control=compare(again, first)).summary["control"]["direct"]
    assert (bound["low"], bound["high"], bound["bound"]) == pytest.approx((0.95, 1.1, 1.1))
    again = curve("again", [1, 8, 64], [100, 60, 20], [80.0, 330.0, 1000.0])
    assert compare(B, B, control=compare(again, first)).summary["control"]["direct"]["bound"] == pytest.approx(1.25)


def test_what_was_asked_for_besides_does_not_move_the_bound():
    again = shifted("again", 1.05)
    plain, asked = compare(again, B), compare(again, B, at_throughput=[120.0])
    assert 1 < asked.same_throughput.iloc[-1]["estimate"] < plain.same_throughput["estimate"].min()
    bounds = [compare(B, B, control=control).summary["control"] for control in (plain, asked)]
    assert bounds[0] == bounds[1]


@pytest.mark.parametrize("gain, inside", [(1.04, True), (1 / 1.04, True), (1.06, False), (1 / 1.06, False)])
def test_what_lies_inside_the_bound_shows_no_difference(gain, inside):
    a, b = three(shifted("a", gain)), three(B)
    control = compare(three(shifted("again", 1.05)), b)
    without, bounded = compare(a, b), compare(a, b, control=control)
    ahead = "A ahead" if gain > 1 else "B ahead"
    for frame, column in (("direct", "ratio"), ("same_speed", "estimate")):
        free, held = (getattr(one, frame).dropna(subset=column)["verdict"] for one in (without, bounded))
        assert len(free) >= 5 and set(free) == {ahead}
        assert set(held) == ({"no difference shown"} if inside else {ahead})
        assert (getattr(bounded, frame)[column].dropna() == getattr(without, frame)[column].dropna()).all()
    assert without.summary["control"] is None


def test_direct_speed_has_its_own_bound_and_verdict():
    a, b = three(shifted("a", 1.3, 1.04)), three(B)
    control = compare(three(shifted("again", 1.0, 1.05)), b)
    row = compare(a, b, control=control).direct.iloc[3]
    assert (row["verdict"], row["speed_verdict"]) == ("A ahead", "no difference shown")
    assert compare(a, b).direct.iloc[3]["speed_verdict"] == "A ahead"
    assert compare(a, b, control=control).summary["direct_speed"]["verdicts"] == {"no difference shown": 8}


def test_tables_name_the_bound():
    a, b = three(shifted("a", 1.04)), three(B)
    found = compare(a, b, control=compare(three(shifted("again", 1.05)), b))
    assert set(direct_table(found)["verdict"]) == {"no difference shown: within the A/A control (1.050×)"}
    assert same_speed_table(found)["verdict"].str.contains(r"within the A/A control \(1\.050×\)").sum() >= 5
    assert not same_throughput_table(found)["verdict"].str.contains(r"\(1\.050×\)").any()
    assert summary_table(found)["A/A control differs by up to"].tolist()[0] == "1.050×"
    assert "A/A control differs by up to" not in summary_table(compare(a, b))


def test_a_multiplier_that_the_control_could_not_read_has_no_bound():
    far = curve("far", GRID, B.points["speed"], B.points["throughput"] * 99)
    found = compare(B, B, control=compare(far, B))
    assert found.summary["control"]["same_throughput"] is None and found.summary["control"]["direct"]["bound"] > 8
    assert summary_table(found)["A/A control differs by up to"].tolist()[3] == "not measured"


def test_a_control_over_another_kind_of_load_is_refused():
    rates = Curve("r", B.workload, "request_rate", B.points)
    with pytest.raises(UserError, match="the control is measured over request_rate, a over concurrency"):
        compare(shifted("a", 1.1), B, control=compare(rates, rates))


def test_the_document_carries_the_control():
    document = compare(shifted("a", 1.2), B, control=compare(shifted("again", 1.05), B)).to_document()
    assert set(document) == {"a", "b", "direct", "same_speed", "same_throughput", "summary", "warnings"}
    control = json.loads(json.dumps(document, allow_nan=False))["summary"]["control"]
    assert set(control) == {"name", "direct", "direct_speed", "same_speed", "same_throughput"}
    assert control["direct"]["bound"] == pytest.approx(1.05)
    assert math.isfinite(control["same_speed"]["bound"])

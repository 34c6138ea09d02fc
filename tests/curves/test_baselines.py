"""Several baselines: each compared on its own, and the composite of the best per reading, which says what it is."""

import json

import pandas as pd
import pytest
from curve_builders import GRID, analytic, curve

from wholecurve.curves import best_baseline_table, compare, compare_many
from wholecurve.errors import UserError

A = analytic("a", 140, 30)
FAST, WIDE = analytic("fast", 120, 20), analytic("wide", 90, 30)  # they cross at 30 tok/s/user, load 60


def exact(axis, target, s0, c0):
    """The other axis of the closed form where ``axis`` is ``target``."""
    load = c0 * (s0 / target - 1) if axis == "speed" else target / (s0 - target / c0)
    return load * target if axis == "speed" else target / load


def test_every_baseline_is_compared_as_alone():
    found = compare_many(A, [FAST, WIDE], at_speed=[55.0])
    assert [one.b.name for one in found.comparisons] == ["fast", "wide"]
    for one, baseline in zip(found.comparisons, (FAST, WIDE), strict=True):
        alone = compare(A, baseline, at_speed=[55.0])
        assert one.same_speed.equals(alone.same_speed) and one.direct.equals(alone.direct)


def test_the_direct_composite_takes_the_better_baseline_at_each_load():
    found = compare_many(A, [FAST, WIDE])
    for multiplier, column in (("direct", "ratio"), ("direct_speed", "speed_ratio")):
        rows = found.best[found.best["multiplier"] == multiplier].set_index("load")
        one, other = (c.direct.set_index("load_b")[column] for c in found.comparisons)
        assert rows.index.tolist() == list(GRID) and (rows["read"] == 2).all()
        for load in GRID:
            assert rows["ratio"][load] == min(one[load], other[load])
            assert rows["best"][load] == ("fast" if one[load] < other[load] else "wide")
        assert set(rows["best"]) == {"fast", "wide"}, "neither is best everywhere: that is what a composite hides"


@pytest.mark.parametrize("axis", ["speed", "throughput"])
def test_the_matched_composite_is_read_at_every_point_of_every_baseline(axis):
    found = compare_many(A, [FAST, WIDE], **{f"at_{axis}": [55.0]}).best
    rows = found[found["multiplier"] == f"same_{axis}"]
    targets = pd.concat([FAST.points[axis], WIDE.points[axis], pd.Series([55.0])])
    assert rows[axis].tolist() == pytest.approx(sorted(targets, reverse=True))
    both = rows[rows["read"] == 2]
    assert len(both) >= 5 and set(both["best"]) == {"fast", "wide"}
    for row in both.itertuples():
        target = getattr(row, axis)
        best = max(exact(axis, target, 120, 20), exact(axis, target, 90, 30))
        assert row.ratio == pytest.approx(exact(axis, target, 140, 30) / best, rel=0.01)
        assert row.refused is None


def test_a_baseline_that_does_not_reach_there_is_named():
    rows = compare_many(A, [FAST, WIDE]).best
    top = rows[(rows["multiplier"] == "same_speed") & (rows["speed"] > 90)].iloc[-1]
    assert (top["read"], top["best"]) == (1, "fast")
    assert top["refused"].startswith("wide: ") and "above everything measured of wide" in top["refused"]
    nowhere = rows[(rows["multiplier"] == "same_speed") & (rows["read"] == 0)]
    assert len(nowhere) and nowhere[["ratio", "best"]].isna().all(axis=None)


def test_a_load_that_a_baseline_lacks_leaves_the_other():
    short = curve("short", GRID[:3], [200.0, 190, 170], [190.0, 370, 650])
    rows = compare_many(A, [short, WIDE]).best
    direct = rows[rows["multiplier"] == "direct"].set_index("load")
    assert (direct["best"][1], direct["best"][128], direct["read"][128]) == ("short", "wide", 1)
    assert direct["refused"][128] == "short: B (short) was not measured at load 128"


def test_it_is_labelled_as_a_composite():
    found = compare_many(A, [FAST, WIDE])
    assert found.label == "the better of 2 baselines per reading: a composite, no one baseline achieves all"
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert set(document) == {"comparisons", "best_baseline"}
    assert document["best_baseline"]["label"] == found.label
    assert [one["b"] for one in document["comparisons"]] == ["fast", "wide"]
    assert document["best_baseline"]["rows"][0]["multiplier"] == "direct"
    table = best_baseline_table(found)
    row = found.best.iloc[0]
    assert table.iloc[0].to_dict() == {
        "multiplier": "direct, throughput",
        "held": "load 1",
        "A over the best baseline": f"{row['ratio']:.2f}×",
        "best baseline": row["best"],
        "read": "2 of 2",
        "not read": "",
    }
    assert "not measured" in set(table["A over the best baseline"])


@pytest.mark.parametrize("baselines", [[], [FAST], [FAST, FAST]])
def test_fewer_than_two_baselines_or_two_of_one_name_are_refused(baselines):
    with pytest.raises(UserError, match="two or more with different names are needed"):
        compare_many(A, baselines)


def test_further_arguments_reach_every_comparison():
    found = compare_many(A, [FAST, WIDE], confidence=0.8, at_concurrency=[8])
    assert [one.summary["confidence"] for one in found.comparisons] == [0.8, 0.8]
    assert all(one.direct["stated"].iloc[-1] for one in found.comparisons)
    with pytest.raises(UserError, match="target speed is -1"):
        compare_many(A, [FAST, WIDE], at_speed=[-1])

"""Points of published curves, left out and predicted again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curve_builders import GRID, analytic, curve
from scipy.interpolate import PchipInterpolator

from wholecurve.curves import ParametricCurve, leave_one_out, leave_one_out_table
from wholecurve.curves.leave_one_out import METHODS

REAL = Path(__file__).parents[2] / "data" / "published" / "curves.csv"
OURS = METHODS[0]


@pytest.fixture(scope="module")
def real_curves():
    rows = pd.read_csv(REAL, comment="#")
    return [
        curve(name, points["load"], points["speed_tok_per_s"], points["throughput_tok_per_s"])
        for name, points in rows.groupby("curve", sort=False)
    ]


def test_published_points_are_predicted_within_six_percent(real_curves):
    table = leave_one_out_table(real_curves).set_index("method")
    print("\n" + table.round(2).to_string())
    assert (table["points"] >= 60).all() and table["points"].nunique() == 1
    assert table.loc[OURS, "median |error| (%)"] <= 6
    assert abs(table.loc[OURS, "bias (%)"]) <= 2


def test_straight_lines_lean_to_one_side_each_and_ours_to_neither(real_curves):
    bias = leave_one_out_table(real_curves).set_index("method")["bias (%)"]
    assert bias["linear"] > 1 and bias["log-log"] < -4 and abs(bias[OURS]) < 1


def test_every_published_curve_names_its_source():
    comments = [line for line in REAL.read_text().splitlines() if line.startswith("#")]
    for name in pd.read_csv(REAL, comment="#")["curve"].unique():
        assert sum(line.startswith(f"# {name}: ") and len(line) > 80 for line in comments) == 1


def test_every_interior_point_is_left_out_once_for_each_axis_and_method():
    found = leave_one_out(analytic("a", 100, 16))
    assert found["refused"].isna().all() and len(found) == 6 * 2 * len(METHODS)
    assert set(found["load"]) == set(GRID[1:-1]) and set(found["method"]) == set(METHODS)
    held = found[found["held"] == "speed"]
    expected = {load: load * 100 / (1 + load / 16) for load in GRID}
    assert held["measured"].tolist() == pytest.approx([expected[load] for load in held["load"]])
    assert found["error"].to_numpy() == pytest.approx(found["predicted"] / found["measured"] - 1)


def test_the_point_itself_is_never_used():
    """A point moved far off is still predicted from the others alone."""
    speeds, throughputs = np.array([100, 90, 75, 55, 35.0]), np.array([100, 180, 300, 440, 560.0])
    plain = leave_one_out(curve("a", GRID[:5], speeds, throughputs))
    throughputs[2] *= 1.4
    moved = leave_one_out(curve("a", GRID[:5], speeds, throughputs))
    at = [(frame["load"] == 4) & (frame["held"] == "speed") for frame in (plain, moved)]
    assert moved[at[1]]["predicted"].tolist() == plain[at[0]]["predicted"].tolist()
    assert moved[at[1]]["measured"].iloc[0] == pytest.approx(1.4 * plain[at[0]]["measured"].iloc[0])


def test_each_method_by_hand():
    loads, speeds, throughputs = np.array([1, 2, 4, 8, 16.0]), [100, 92, 75, 55, 35], [100, 180, 300, 440, 560]
    made = curve("a", loads, speeds, throughputs)
    found = leave_one_out(made)
    row = found[(found["load"] == 4) & (found["held"] == "speed")].set_index("method")["predicted"]
    kept = [0, 1, 3, 4]
    c, x, y = np.log(loads[kept]), np.array(speeds)[kept], np.array(throughputs)[kept]
    assert row["linear"] == pytest.approx(180 + (92 - 75) / (92 - 55) * 260)
    assert row["log-log"] == pytest.approx(180 * (440 / 180) ** (np.log(92 / 75) / np.log(92 / 55)))
    assert row["PCHIP y(x)"] == pytest.approx(float(PchipInterpolator(x[::-1], y[::-1])(75)))
    grid = np.linspace(c[1], c[2], 400_001)
    at = grid[np.argmin(abs(PchipInterpolator(c, np.log(x))(grid) - np.log(75)))]
    assert row["parametric PCHIP, three-point ends"] == pytest.approx(
        np.exp(PchipInterpolator(c, np.log(y))(at)), rel=1e-4
    )
    rest = ParametricCurve("a", loads[kept], x, y)
    (solution,) = rest.solve("speed", 75)
    assert row[OURS] == rest.at("throughput", solution) != row["parametric PCHIP, three-point ends"]


def test_what_the_rules_refuse_is_kept_apart_with_its_reason():
    flat = curve("f", [1, 2, 4, 8, 16], [90, 60, 35, 18, 9], [90, 120, 121, 119, 120])
    found = leave_one_out(flat)
    refused = found[found["refused"].notna()]
    assert refused["method"].isna().all() and refused["predicted"].isna().all()
    assert refused["refused"].str.contains("f has|of f").all() and "throughput" in set(refused["held"])
    assert leave_one_out_table([flat])["points"].iloc[0] == found["method"].eq(OURS).sum()
    assert leave_one_out(curve("two", [1, 2], [9, 8], [9, 16])).empty

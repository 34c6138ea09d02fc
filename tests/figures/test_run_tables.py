"""Tables and choices of a run's report: what is noise, what is refused, which multiplier is worth a figure."""

import pandas as pd
import pytest

from wholecurve.curves import Curve, compare
from wholecurve.figures.run_figures import _clearest_row
from wholecurve.figures.tables import decode_table, latency_table, multiplier_table, noise_sentence, refusals


def points(scale, wobble, loads=(1, 2, 4, 8), repeats=3, name="a"):
    rows = []
    for repeat in range(1, repeats + 1):
        for load in loads:
            speed = scale * 100 / (1 + load / 8) * (1 + wobble * (repeat - 2))
            rows.append({
                "contender": name, "workload": "decode", "load_kind": "concurrency", "load": load, "repeat": repeat,
                "devices": 1, "device_kind": "cpu", "source": "measured (cpu)", "window": "steady",
                "decode_speed_tok_per_s": speed, "output_throughput_tok_per_s": 0.9 * load * speed,
                "ttft_p50_ms": 20.0, "ttft_p90_ms": None, "tpot_p50_ms": 1000 / speed, "tpot_p90_ms": None,
                "e2e_p50_ms": 500.0, "occupancy": 0.9, "n_completed": 3 * load, "n_failed": 0,
            })  # fmt: skip
    return pd.DataFrame(rows)


def curves(scale, wobble_a, wobble_b, **more):
    a, b = points(scale, wobble_a), points(1.0, wobble_b, name="b", **more)
    return compare(Curve.from_points(a, "a"), Curve.from_points(b, "b"))


def test_control_names_its_range_and_the_intervals_that_miss_one():
    same = noise_sentence(curves(1.0, 0.02, -0.02))
    assert "by 1.00× to 1.00×; 0 of" in same
    shifted = noise_sentence(curves(1.1, 0.001, 0.0))
    low, _, rest = shifted.removeprefix("control: the same engine differs from itself by ").partition("× to ")
    assert float(low) == pytest.approx(1.1, abs=0.01) and float(rest.partition("×")[0]) > 1.1
    missed, _, of = shifted.partition("; ")[2].partition(" of ")
    assert int(missed) == int(of.split()[0]) > 0


def test_a_figure_is_drawn_of_a_row_that_shows_a_difference():
    row = _clearest_row(curves(1.5, 0.01, 0.0))
    assert row["verdict"] == "A ahead" and row["estimate"] > 1.5
    assert _clearest_row(curves(1.0, 0.2, -0.2)) is None
    assert _clearest_row(curves(1.5, 0.01, 0.0, repeats=1)) is None, "one repeat decides nothing"


def test_readings_with_one_reason_share_a_line():
    found = refusals(curves(0.5, 0.01, 0.0))
    same_speed = [line for line in found if line.startswith("same speed")]
    assert len(same_speed) == 1
    assert same_speed[0].startswith("same speed at load 1, 2, 4, 8: the target is above everything measured of A (a)")


def test_tables_keep_ranges_and_leave_out_what_is_not_there():
    frame = points(1.0, 0.1)
    bound = pd.DataFrame({"load": [1, 2, 4, 8], "output_throughput_tok_per_s": [160.0] * 4})
    table = decode_table(frame, bound)
    first = table.iloc[0]
    assert first["throughput (tok/s)"] == "80.0 (72.0–88.0)" and first["of bound"] == "50 %" and first["n"] == 3
    latency = latency_table(frame).iloc[0]
    assert latency["TTFT p90 (ms)"] == "–" and latency["TTFT p50 (ms)"] == "20.0" and latency["requests"] == 9


def test_star_marks_matched_multipliers_without_a_difference():
    table = multiplier_table(curves(1.0, 0.2, -0.2))
    assert table["same throughput"].str.endswith(" *").any()
    assert not multiplier_table(curves(1.5, 0.01, 0.0))["same throughput"].str.contains(r"\*").any()


def test_a_reason_with_a_semicolon_is_one_reason():
    rows = [
        ("a", 1, 100.0, 90.0),
        ("a", 8, 60.0, 450.0),
        ("b", 1, 50.0, 45.0),
        ("b", 4, 52.0, 200.0),
        ("b", 8, 40.0, 300.0),
    ]
    frame = pd.DataFrame(rows, columns=["contender", "load", "decode_speed_tok_per_s", "output_throughput_tok_per_s"])
    frame = frame.assign(workload="decode", load_kind="concurrency", repeat=1, devices=1, device_kind="cpu")
    found = refusals(compare(Curve.from_points(frame, "a"), Curve.from_points(frame, "b")))
    several = [line for line in found if "at more than one load" in line]
    assert several and all(line.endswith("; no one load is the match") for line in several)
    assert not any(line.endswith(": no one load is the match") or line.endswith(": not extrapolated") for line in found)

"""What the multiplier figures draw: estimates, intervals, brackets, floors, refusals, operating points."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from figure_frames import comparison, decode_points
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures import matched_points, multiplier_plot
from wholecurve.figures.matched import matched_kind, value_text


def marked(ax, gid):
    return [artist for artist in (*ax.lines, *ax.collections) if artist.get_gid() == gid]


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def test_values_of_all_kinds_are_those_of_the_comparison():
    document = comparison()
    ax = multiplier_plot(document, Figure().subplots())
    wanted = {
        "direct, throughput": [row["ratio"] for row in document["direct"]],
        "direct, speed": [row["speed_ratio"] for row in document["direct"]],
        "same speed": [row["estimate"] for row in document["same_speed"] if row["estimate"] and row["load_b"]],
        "same throughput": [row["estimate"] for row in document["same_throughput"]],
    }
    for kind, values in wanted.items():
        (line,) = marked(ax, f"value {kind}")
        np.testing.assert_allclose(line.get_ydata(), values)
        hollow = to_hex(line.get_markerfacecolor()) == to_hex(ax.get_facecolor())
        assert hollow == kind.startswith("same")
        assert kind in texts(ax)
    assert len({line.get_color() for kind in wanted for line in marked(ax, f"value {kind}")}) == 4


def test_marks_stand_around_the_load_of_b():
    ax = multiplier_plot(comparison(), Figure().subplots())
    for kind, loads in (("direct, speed", [1, 2, 4, 8, 16]), ("same speed", [2, 4, 8])):
        (line,) = marked(ax, f"value {kind}")
        octaves = np.log2(np.asarray(line.get_xdata()) / loads)
        assert np.all(np.abs(octaves) < 0.5) and np.all(octaves == pytest.approx(octaves[0]))
    ax.figure.draw_without_rendering()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert all(label.get_text().endswith("×") for label in ax.get_yticklabels())
    assert ax.get_xlabel() == "concurrency of slow" and ax.get_ylabel() == "fast over slow\n(multiplier, ×)"


def test_interval_bracket_and_floor_are_drawn():
    document = comparison()
    ax = multiplier_plot(document, Figure().subplots())
    rows = [row for row in document["same_speed"] if row["estimate"] and row["load_b"]]
    for gid, low, high in (("interval", "low", "high"), ("bracket", "bracket_low", "bracket_high")):
        (lines,) = marked(ax, f"{gid} same speed")
        ends = np.array([segment[:, 1] for segment in lines.get_segments()])
        np.testing.assert_allclose(ends, [[row[low], row[high]] for row in rows])
    (floor,) = marked(ax, "floor same speed")
    np.testing.assert_allclose(floor.get_ydata(), [row["floor"] for row in rows])
    assert "whisker: interval, n = 3" in texts(ax) and "band: bracket" in texts(ax) and "tick: floor" in texts(ax)


def test_one_run_has_no_interval_and_says_so():
    ax = multiplier_plot(comparison(1), Figure().subplots())
    assert "n = 1, no interval" in texts(ax)
    for kind in ("same speed", "direct, throughput"):
        assert all(len(lines.get_segments()) == 0 for lines in marked(ax, f"interval {kind}"))


def test_refused_targets_are_hollow_at_the_bottom_with_their_reason():
    ax = multiplier_plot(comparison(), Figure().subplots())
    refused = marked(ax, "refused same speed")
    assert len(refused) == 2
    assert all(mark.get_markerfacecolor() == "none" and mark.get_ydata()[0] < 0.11 for mark in refused)
    note = texts(ax).replace("\n", " ")
    assert "same speed at 1: faster than every measured point of A" in note
    assert "same speed at 16: slower than every measured point of A" in note
    assert "1 stated target without a measured load of B" in note
    bottom = ax.transAxes.inverted().transform(ax.transData.transform([(1, tick) for tick in ax.get_yticks()]))[:, 1]
    assert bottom.min() > 0.1


def test_a_refused_row_is_never_drawn_as_a_value():
    document = comparison()
    document["direct"][2]["refused"] = "different windows"
    ax = multiplier_plot(document, Figure().subplots())
    assert len(marked(ax, "value direct, throughput")[0].get_xdata()) == 4
    assert len(marked(ax, "value direct, speed")[0].get_xdata()) == 4
    assert "direct, throughput at 4: different windows" in texts(ax).replace("\n", " ")


def test_the_line_at_one_says_no_difference():
    ax = multiplier_plot(comparison(), Figure().subplots())
    (line,) = marked(ax, "no difference")
    assert list(line.get_ydata()) == [1, 1]
    assert "no difference" in [text.get_text() for text in ax.texts]


def test_a_comparison_object_and_prefill_without_speed_are_fine():
    document = comparison()
    direct = pd.DataFrame(document["direct"]).assign(speed_ratio=None, speed_low=None, speed_high=None)
    thing = SimpleNamespace(
        direct=direct, same_speed=pd.DataFrame(), same_throughput=pd.DataFrame(),
        a=SimpleNamespace(name="ours"), b="theirs",
    )  # fmt: skip
    ax = multiplier_plot(thing, Figure().subplots(), load_label="tokens per step")
    assert ax.get_ylabel().startswith("ours over theirs")
    assert ax.get_xlabel() == "tokens per step of theirs"
    assert len(marked(ax, "value direct, throughput")) == 1 and marked(ax, "value direct, speed") == []


def test_a_comparison_without_any_value_is_refused():
    with pytest.raises(UserError, match="no multiplier"):
        multiplier_plot({"direct": [], "same_speed": [], "same_throughput": []}, Figure().subplots())
    with pytest.raises(UserError, match="has no 'same_speed'"):
        multiplier_plot({"direct": []}, Figure().subplots())


ROW = {
    "speed": 9.0, "throughput": 34.0, "speed_a": 9.0, "throughput_a": 100.0, "estimate": 100 / 34,
    "load_a": 13.234, "load_b": 4, "low": 2.5, "high": 3.4, "n": 3, "refused": None, "verdict": "A ahead",
}  # fmt: skip


def matched(**change):
    a, b = decode_points({"openvino-genai": 1.3}), decode_points({"transformers": 0.7})
    return matched_points(a, b, ROW | change, Figure().subplots())


def test_a_matched_multiplier_is_the_line_between_its_points():
    ax = matched()
    (line,) = marked(ax, "multiplier")
    assert list(line.get_xdata()) == [9.0, 9.0] and list(line.get_ydata()) == [100.0, 34.0]
    (end_a,), (end_b,) = marked(ax, "end openvino-genai"), marked(ax, "end transformers")
    assert to_hex(end_a.get_markerfacecolor()) == to_hex(ax.get_facecolor())
    assert (
        end_b.get_markerfacecolor() == end_b.get_color() or end_b.get_markerfacecolor() == end_b.get_markeredgecolor()
    )
    note = texts(ax)
    assert "2.94× throughput\nat the same speed\n2.50× to 3.40×, n = 3" in note
    assert "openvino-genai\n9 tok/s/user · 100 tok/s\nload 13.2, interpolated" in note
    assert "transformers\n9 tok/s/user · 34 tok/s\nload 4, measured" in note


def test_a_stated_target_is_hollow_on_both_ends():
    ax = matched(load_b=None)
    (end_b,) = marked(ax, "end transformers")
    assert to_hex(end_b.get_markerfacecolor()) == to_hex(ax.get_facecolor())


def test_one_run_and_no_difference_are_said():
    note = texts(matched(low=float("nan"), high=None, n=1, verdict="no difference shown"))
    assert "n = 1, no interval" in note and "no difference shown" in note


def test_the_kind_comes_from_the_points():
    assert matched_kind(ROW) == "same speed"
    assert matched_kind(ROW | {"speed_a": 12.0, "throughput_a": 34.0}) == "same throughput"
    for change, message in (
        ({"refused": "outside"}, "refused.*outside"),
        ({"speed_a": None}, "no speed_a"),
        ({"speed_a": 12.0}, "neither the same speed"),
    ):
        with pytest.raises(UserError, match=message):
            matched_kind(ROW | change)


def test_matched_points_needs_one_contender_on_each_side():
    two, one = decode_points({"a": 1.0, "b": 1.0}), decode_points({"a": 1.0})
    with pytest.raises(UserError, match="a_points must hold one contender"):
        matched_points(two, one, ROW, Figure().subplots())
    with pytest.raises(UserError, match="need two names"):
        matched_points(one, one, ROW, Figure().subplots())


def test_multipliers_keep_three_digits():
    assert [value_text(v) for v in (2.4, 12.34, 0.9, 123.4)] == ["2.40×", "12.3×", "0.900×", "123×"]

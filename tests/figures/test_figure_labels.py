"""Direct labels: none covers another, none leaves the Axes."""

import itertools

import numpy as np
import pytest
from figure_frames import comparison, decode_points, prefill_points
from matplotlib.figure import Figure

from wholecurve.figures import (
    dark,
    light,
    matched_points,
    multiplier_plot,
    prefill_throughput,
    throughput_vs_concurrency,
    throughput_vs_speed,
)
from wholecurve.figures.labels import Label, Obstacles, label_boxes, place_labels, spread
from wholecurve.figures.series import column_shifts

FOUR = {"wholecurve": 1.0, "openvino-genai": 1.3, "transformers": 0.6, "wholecurve (again)": 1.0}
CLOSE = {"wholecurve": 1.0, "openvino-genai": 1.005, "llama.cpp": 0.995, "vllm": 1.0, "sglang": 1.002}
MATCHED = {
    "speed": 9.0, "throughput": 34.0, "speed_a": 9.0, "throughput_a": 100.0, "estimate": 100 / 34,
    "load_a": 13.0, "load_b": 4, "low": None, "high": None, "n": 1, "refused": None,
}  # fmt: skip


def overlaps(ax):
    """Pairs of texts whose boxes share more than a pixel."""
    pairs = itertools.combinations(label_boxes(ax).items(), 2)
    return [(a, b) for (a, p), (b, q) in pairs if np.all(np.minimum(p[2:], q[2:]) - np.maximum(p[:2], q[:2]) > 1)]


CASES = {
    "four": lambda ax: throughput_vs_speed(decode_points(FOUR), ax, control="wholecurve (again)"),
    "close": lambda ax: throughput_vs_speed(decode_points(CLOSE), ax),
    "single point": lambda ax: throughput_vs_speed(decode_points({"a": 1.0, "b": 1.01}, loads=(4,), repeats=1), ax),
    "many loads": lambda ax: throughput_vs_speed(
        decode_points({"vllm": 1.0, "sglang": 1.15}, [2**i for i in range(10)], kind="gpu", devices=8), ax
    ),
    "concurrency": lambda ax: throughput_vs_concurrency(decode_points(CLOSE), ax),
    "prefill": lambda ax: prefill_throughput(prefill_points({"vllm": 1.0, "sglang": 1.01}), ax),
    "multipliers": lambda ax: multiplier_plot(comparison(), ax),
    "multipliers n = 1": lambda ax: multiplier_plot(comparison(1), ax),
    "matched": lambda ax: matched_points(
        decode_points({"openvino-genai": 1.3}), decode_points({"transformers": 0.7}), MATCHED, ax
    ),
}


@pytest.mark.parametrize("style", [light, dark])
@pytest.mark.parametrize("case", CASES)
def test_no_label_covers_another_and_none_leaves_the_axes_sideways(case, style):
    with style():
        ax = CASES[case](Figure().subplots())
        assert overlaps(ax) == []
        frame = ax.get_window_extent()
        for text, box in label_boxes(ax).items():
            assert frame.x0 - 1 <= box[0] and box[2] <= frame.x1 + 1, text


@pytest.mark.parametrize("case", ["four", "close", "many loads", "single point"])
def test_point_labels_stay_inside_the_axes(case):
    with light():
        ax = CASES[case](Figure().subplots())
    frame = ax.get_window_extent()
    inside = [text for text in ax.texts if text.get_text().isdigit()]
    assert inside
    for text in inside:
        box = text.get_window_extent()
        assert frame.y0 <= box.y0 and box.y1 <= frame.y1


def test_names_of_a_column_keep_the_order_of_their_lines():
    with light():
        ax = throughput_vs_concurrency(decode_points(CLOSE, noise=0.0), Figure().subplots())
    boxes = {key.split(": ", 1)[1]: box for key, box in label_boxes(ax).items()}
    heights = [boxes[name][1] for name in sorted(CLOSE, key=CLOSE.get)]
    assert heights[0] == min(heights) and heights[-1] == max(heights)


def test_a_column_of_names_at_the_top_edge_moves_down_together():
    names = {"wholecurve": 1.0, "openvino-genai": 1.02, "llama.cpp": 1.0, "transformers": 0.2, "vllm": 1.01}
    with light():
        ax = throughput_vs_concurrency(decode_points(names, noise=0.0), Figure().subplots())
    boxes = {key.split(": ", 1)[1]: box for key, box in label_boxes(ax).items()}
    left = [boxes[name][0] for name in names]
    assert max(left) - min(left) < 20 and max(boxes[name][3] for name in names) <= ax.get_window_extent().y1


def test_names_at_the_bottom_edge_move_up_together():
    with light():
        ax = Figure().subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        shifts = column_shifts(ax, [(0.5, 0.0), (0.5, 0.001), (0.5, 0.9)], ["a", "b", "c"])
    assert 0 < shifts[0] < shifts[1] and shifts[2] == pytest.approx(0)


def test_spread_keeps_order_mean_and_distance():
    wanted = [10.0, 11.0, 11.5, 50.0]
    placed = spread(wanted, 8.0)
    assert np.all(np.diff(placed) >= 8 - 1e-9)
    assert placed[:3].mean() == pytest.approx(np.mean(wanted[:3]))
    assert placed[3] == 50.0
    assert list(spread([3.0, 1.0], 8.0)) == [6.0, -2.0]
    assert list(spread([3.0, 1.0, 90.0], 8.0, low=0.0)) == [8.0, 0.0, 90.0]
    assert list(spread([3.0, 99.0, 98.0], 8.0, high=100.0)) == [3.0, 100.0, 92.0]


def test_an_optional_label_without_room_is_left_out_and_a_required_one_stays():
    with light():
        ax = Figure().subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        walls = [np.array([0, 0, 5000, 5000])]
        assert place_labels(ax, [Label("4", 0.5, 0.5, "k", required=False)], Obstacles(labels=list(walls))) == []
        assert len(place_labels(ax, [Label("4", 0.5, 0.5, "k")], Obstacles(labels=list(walls)))) == 1


@pytest.mark.parametrize("at", [(0.5, 1.0), (1.0, 0.5), (0.0, 0.0)])
def test_a_label_at_the_edge_stays_inside(at):
    with light():
        ax = Figure().subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        for side in ("around", "right"):
            (label,) = place_labels(ax, [Label("a long name", *at, "k", side)], Obstacles())
            box, frame = label.get_window_extent(), ax.get_window_extent()
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 + 1 and frame.y0 <= box.y0 and box.y1 <= frame.y1 + 1
            label.remove()


def test_a_label_avoids_the_line_through_its_point():
    with light():
        ax = Figure().subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        obstacles = Obstacles()
        obstacles.add_path(ax.transData.transform([(0.5, 0.5), (0.5, 1.0)]))
        (label,) = place_labels(ax, [Label("64", 0.5, 0.5, "k")], obstacles)
        box, at = label.get_window_extent(), ax.transData.transform((0.5, 0.5))
    assert box.y1 < at[1] or box.x0 > at[0] or box.x1 < at[0]

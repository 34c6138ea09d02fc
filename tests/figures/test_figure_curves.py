"""What the curve figures draw: data, labels with units, scales and refusals."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from figure_frames import decode_points, prefill_points
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures import prefill_throughput, throughput_vs_concurrency, throughput_vs_speed

TWO = {"wholecurve": 1.0, "transformers": 0.6}


def by_gid(ax, gid):
    (line,) = [line for line in ax.lines if line.get_gid() == gid]
    return line


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def tick_labels(axis):
    axis.axes.figure.draw_without_rendering()
    return [label.get_text() for label in axis.get_ticklabels()]


def test_speed_figure_plots_every_repeat_and_the_medians():
    points = decode_points(TWO, devices=4, kind="gpu")
    ax = throughput_vs_speed(points, Figure().subplots())
    rows = points[points["contender"] == "transformers"]
    dots, line = by_gid(ax, "repeats transformers"), by_gid(ax, "median transformers")
    np.testing.assert_allclose(dots.get_xdata(), rows["decode_speed_tok_per_s"])
    np.testing.assert_allclose(dots.get_ydata(), rows["output_throughput_tok_per_s"] / 4)
    medians = rows.groupby("load")[["decode_speed_tok_per_s", "output_throughput_tok_per_s"]].median()
    np.testing.assert_allclose(line.get_xdata(), medians["decode_speed_tok_per_s"])
    np.testing.assert_allclose(line.get_ydata(), medians["output_throughput_tok_per_s"] / 4)
    assert len(ax.lines) == 4


def test_speed_figure_says_units_direction_and_load():
    ax = throughput_vs_speed(decode_points(TWO, devices=8, kind="gpu"), Figure().subplots())
    assert ax.get_xlabel() == "decode speed (tok/s/user)"
    assert ax.get_ylabel() == "output throughput per GPU\n(tok/s/GPU, steady window)"
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "up and right is better" in texts(ax)
    assert "● measured (gpu)" in texts(ax) and "dots: 3 repeats" in texts(ax) and "numbers: concurrency" in texts(ax)
    for number in ("1", "2", "4", "8", "16"):
        assert number in [text.get_text() for text in ax.texts]
    ticks = tick_labels(ax.xaxis) + tick_labels(ax.yaxis)
    assert ticks and not any("10^" in tick or "$" in tick for tick in ticks)


def test_cpu_figure_speaks_of_the_machine_with_squares():
    ax = throughput_vs_speed(decode_points(TWO, window="full"), Figure().subplots())
    assert ax.get_ylabel() == "output throughput per machine\n(tok/s, full run)"
    assert by_gid(ax, "median wholecurve").get_marker() == "s"


def test_filled_is_measured_and_published_is_hollow_and_dashed():
    points = pd.concat(
        [decode_points({"a": 1.0}, kind="gpu"), decode_points({"b": 1.1}, kind="gpu", source="published")]
    )
    ax = throughput_vs_speed(points, Figure().subplots())
    measured, published = by_gid(ax, "median a"), by_gid(ax, "median b")
    assert measured.get_markerfacecolor() == measured.get_color() and measured.get_linestyle() == "-"
    assert published.get_markerfacecolor() == ax.get_facecolor() and published.get_linestyle() == "--"
    assert measured.get_marker() != published.get_marker()


@pytest.mark.parametrize("control", ["wholecurve (again)", ["wholecurve (again)"]])
def test_control_is_thin_grey_below_and_without_load_labels(control):
    points = decode_points({"wholecurve": 1.0, "wholecurve (again)": 1.0})
    ax = throughput_vs_speed(points, Figure().subplots(), control=control)
    line, other = by_gid(ax, "median wholecurve (again)"), by_gid(ax, "median wholecurve")
    assert line.get_linewidth() < other.get_linewidth() and line.get_zorder() < other.get_zorder()
    assert line.get_color() == "#8c959f"
    assert sum(text.get_text() == "4" for text in ax.texts) == 1


def test_missing_points_are_absent_and_an_empty_contender_is_named():
    points = decode_points(TWO)
    points.loc[(points["contender"] == "wholecurve") & (points["load"] == 4), "decode_speed_tok_per_s"] = np.nan
    points.loc[points["contender"] == "transformers", "output_throughput_tok_per_s"] = 0.0
    ax = throughput_vs_speed(points, Figure().subplots())
    assert len(by_gid(ax, "median wholecurve").get_xdata()) == 4
    assert "not measured: transformers" in texts(ax)


def test_concurrency_figure_has_log2_loads_and_a_dashed_bound():
    points = decode_points(TWO)
    bound = pd.DataFrame({"load": [16, 1], "output_throughput_tok_per_s": [500.0, 45.0], "label": "bandwidth"})
    ax = throughput_vs_concurrency(points, Figure().subplots(), bound=bound)
    assert ax.get_xlabel() == "requests in flight (concurrency)"
    assert ax.xaxis.get_transform().base == 2
    assert tick_labels(ax.xaxis) == ["1", "2", "4", "8", "16"]
    line = by_gid(ax, "bound bandwidth")
    assert line.get_linestyle() == "--" and list(line.get_xdata()) == [1, 16] and list(line.get_ydata()) == [45, 500]
    assert "dashed: model (roofline)" in texts(ax) and "bandwidth" in [t.get_text() for t in ax.texts]
    dots = by_gid(ax, "repeats wholecurve")
    np.testing.assert_allclose(
        dots.get_ydata(), points.loc[points["contender"] == "wholecurve", "output_throughput_tok_per_s"]
    )
    assert "dashed" not in texts(throughput_vs_concurrency(points, Figure().subplots()))


def test_prefill_figure_writes_binary_thousands_and_plots_input_throughput_per_gpu():
    points = prefill_points(TWO).assign(devices=2)
    ax = prefill_throughput(points, Figure().subplots())
    assert tick_labels(ax.xaxis) == ["512", "2K", "8K", "32K"]
    assert ax.get_ylabel() == "input throughput per GPU\n(tok/s/GPU, non-cached)"
    assert ax.get_xlabel() == "new input tokens per step (tokens per GPU)"
    rows = points[points["contender"] == "wholecurve"]
    np.testing.assert_allclose(by_gid(ax, "repeats wholecurve").get_ydata(), rows["input_throughput_tok_per_s"] / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="devices"), "lacks column 'devices'"),
        (lambda f: f.iloc[:0], "no rows"),
        (lambda f: f.assign(device_kind=["cpu", "gpu"] * (len(f) // 2)), "either 'cpu' or 'gpu'"),
        (lambda f: f.assign(workload=["decode", "prefill"] * (len(f) // 2)), "mixes workloads"),
        (lambda f: f.assign(source=None), "unknown source None"),
        (lambda f: f.assign(output_throughput_tok_per_s=np.nan), "every point is missing"),
    ],
)
def test_bad_frames_are_refused_in_one_line(change, message):
    with pytest.raises(UserError, match=message) as error:
        throughput_vs_speed(change(decode_points(TWO)), Figure().subplots())
    assert "\n" not in str(error.value)


def test_the_wrong_kind_of_load_is_refused():
    with pytest.raises(UserError, match="needs 'step_tokens'"):
        prefill_throughput(decode_points(TWO, input_throughput_tok_per_s=1.0), Figure().subplots())
    with pytest.raises(UserError, match="lacks column 'label'"):
        throughput_vs_concurrency(
            decode_points(TWO),
            Figure().subplots(),
            bound=pd.DataFrame({"load": [1], "output_throughput_tok_per_s": [2.0]}),
        )


def test_without_axes_one_pyplot_figure_is_made_and_no_setting_stays_changed():
    before, figures = dict(matplotlib.rcParams), plt.get_fignums()
    points = decode_points(TWO)
    copy = points.copy()
    ax = throughput_vs_speed(points)
    assert len(plt.get_fignums()) == len(figures) + 1
    assert dict(matplotlib.rcParams) == before
    pd.testing.assert_frame_equal(points, copy)
    plt.close(ax.figure)

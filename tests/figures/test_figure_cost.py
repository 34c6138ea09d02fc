"""The cost figures: what they plot against latency, what they mark there, and what they refuse."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from figure_frames import decode_points
from matplotlib.figure import Figure

from wholecurve.curves.costs.plane import cost_plane
from wholecurve.curves.costs.rates import rates_for
from wholecurve.errors import UserError
from wholecurve.figures import throughput_vs_concurrency, throughput_vs_speed
from wholecurve.figures.cost import cost_latency_curve, dollars_per_million_curve, save_cost_figure

TWO = {"wholecurve": 1.0, "transformers": 0.6}


def plane(at=(), usd=2.0, **columns):
    points = decode_points(TWO, repeats=2, **columns)
    latency = 1000 * (1 + points["load"] / 4) / points["contender"].map(TWO) * (1 + 0.01 * points["repeat"])
    points = points.assign(e2e_p90_ms=latency, n_completed=40)
    return cost_plane(points, rates_for(points, usd), at)


def line_of(ax, gid):
    (line,) = [line for line in ax.lines if line.get_gid() == gid]
    return line


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def test_the_latency_curve_plots_every_repeat_and_the_medians_in_seconds():
    costs = plane().costs
    ax = cost_latency_curve(costs, Figure().subplots())
    rows = costs[costs["contender"] == "transformers"]
    dots, line = line_of(ax, "repeats transformers"), line_of(ax, "median transformers")
    np.testing.assert_allclose(dots.get_xdata(), rows["e2e_ms"] / 1000)
    np.testing.assert_allclose(dots.get_ydata(), rows["tokens_per_usd"])
    medians = rows.groupby("load")[["e2e_ms", "tokens_per_usd"]].median()
    np.testing.assert_allclose(line.get_xdata(), medians["e2e_ms"] / 1000)
    np.testing.assert_allclose(line.get_ydata(), medians["tokens_per_usd"])
    assert line.get_markerfacecolor() == line.get_color()


def test_axes_say_what_where_and_at_which_rate():
    costs = plane().costs
    ax = cost_latency_curve(costs, Figure().subplots())
    assert ax.get_xlabel() == "p90 end-to-end latency (s)"
    assert ax.get_ylabel() == "output tokens per dollar\n(at 2.00 $ per machine-hour)"
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "up and left is better" in texts(ax) and "numbers: concurrency" in texts(ax)
    assert {"1", "2", "4", "8", "16"} <= {text.get_text() for text in ax.texts}
    ax = dollars_per_million_curve(costs, Figure().subplots())
    assert ax.get_ylabel() == "dollars per million output tokens\n(at 2.00 $ per machine-hour)"
    assert "down and left is better" in texts(ax)
    line = line_of(ax, "median wholecurve")
    own = costs[costs["contender"] == "wholecurve"].groupby("load")["usd_per_million_tokens"].median()
    np.testing.assert_allclose(line.get_ydata(), own)


def test_different_rates_are_given_as_a_range_per_gpu_hour():
    costs = plane(kind="gpu").costs
    costs.loc[costs["contender"] == "transformers", "usd_per_device_hour"] = 1.4
    ax = cost_latency_curve(costs, Figure().subplots())
    assert ax.get_ylabel().endswith("(at 1.40–2.00 $ per GPU-hour)")


def test_a_reading_is_marked_on_its_curve_hollow_where_it_is_interpolated():
    found = plane(at=[2500.0, 50_000.0])
    readings = found.at_latency[found.at_latency["latency_ms"] == 2500]
    ax = cost_latency_curve(found.costs, Figure().subplots(), readings=readings)
    assert line_of(ax, "latency").get_xdata()[0] == 2.5
    for row in readings.itertuples():
        mark = line_of(ax, f"reading {row.contender}")
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (2.5, row.tokens_per_usd)
        assert mark.get_markerfacecolor() == ax.get_facecolor()
        assert f"load {row.load:.3g}, interpolated" in texts(ax)
    measured = readings.assign(measured=True)
    ax = dollars_per_million_curve(found.costs, Figure().subplots(), readings=measured)
    mark = line_of(ax, "reading wholecurve")
    assert mark.get_markerfacecolor() == mark.get_markeredgecolor()
    assert mark.get_ydata()[0] == readings["usd_per_million_tokens"].iloc[0]
    with pytest.raises(UserError, match="several latencies"):
        cost_latency_curve(found.costs, Figure().subplots(), readings=found.at_latency)


def test_a_refused_reading_is_named_and_not_drawn():
    found = plane(at=[1300.0])
    ax = cost_latency_curve(found.costs, Figure().subplots(), readings=found.at_latency)
    assert "not measured there: transformers" in texts(ax)
    assert [line.get_gid() for line in ax.lines if line.get_gid().startswith("reading")] == ["reading wholecurve"]


def test_points_without_a_latency_or_a_cost_are_absent_and_a_contender_without_any_is_named():
    costs = plane().costs
    costs.loc[(costs["contender"] == "wholecurve") & (costs["load"] == 4), "e2e_ms"] = np.nan
    costs.loc[costs["contender"] == "transformers", "tokens_per_usd"] = np.nan
    ax = cost_latency_curve(costs, Figure().subplots())
    assert len(line_of(ax, "median wholecurve").get_xdata()) == 4
    assert "not measured: transformers" in texts(ax)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="e2e_ms"), "lacks column 'e2e_ms'"),
        (lambda f: f.assign(tokens_per_usd=np.nan), "every point is missing"),
        (lambda f: f.assign(workload=["a", "b"] * (len(f) // 2)), "mixes workloads"),
        (lambda f: f.assign(tokens=["output", "input"] * (len(f) // 2)), "prices input and output tokens"),
        (lambda f: f.iloc[:0], "no rows"),
    ],
)
def test_frames_that_cannot_be_drawn_are_refused_in_one_line(change, message):
    with pytest.raises(UserError, match=message):
        cost_latency_curve(change(plane().costs), Figure().subplots())


def test_saved_figures_name_the_rates_and_are_told_apart_by_workload(tmp_path):
    paths = save_cost_figure(plane(at=[2500.0, 9000.0]), tmp_path, "a synthetic run")
    assert sorted(path.name for path in paths) == sorted(
        f"{stem}_vs_latency.{end}"
        for stem in ("tokens_per_dollar", "dollars_per_million")
        for end in ("light.svg", "dark.svg", "png", "json")
    )
    sidecar = json.loads((tmp_path / "tokens_per_dollar_vs_latency.json").read_text())
    assert sidecar["source"] == "a synthetic run; rates: 2.00 USD/h (assumed by the user)"
    assert "wholecurve reaches" in sidecar["alt"] and "never idle" in sidecar["caption"]
    points = pd.concat([decode_points(TWO), decode_points(TWO).assign(workload="chat mix")])
    both = cost_plane(points.assign(e2e_p90_ms=1000.0 * points["load"], n_completed=40), rates_for(points, 2.0))
    names = {path.name for path in save_cost_figure(both, tmp_path, "a synthetic run")}
    assert "tokens_per_dollar_vs_latency_chat-mix.png" in names and "tokens_per_dollar_vs_latency_decode.png" in names
    assert not plt.get_fignums()


def test_a_plane_without_latency_or_rate_says_so_and_writes_nothing(tmp_path):
    points = decode_points(TWO)
    with pytest.raises(UserError, match="no p90 of the E2E latency; no rate was given"):
        save_cost_figure(cost_plane(points, rates_for(points)), tmp_path / "out", "a synthetic run")
    assert not (tmp_path / "out").exists()


def test_a_server_is_labelled_as_one_and_its_source_is_drawn_as_measured():
    points = decode_points(TWO, kind="gpu", source="measured (device unstated)").assign(device_kind="server")
    ax = throughput_vs_speed(points, Figure().subplots())
    assert ax.get_ylabel() == "output throughput per server\n(tok/s, steady window)"
    line = line_of(ax, "median wholecurve")
    assert line.get_markerfacecolor() == line.get_color() and line.get_linestyle() == "-"
    assert "⬢ measured (device unstated)" in texts(ax)
    assert (
        throughput_vs_concurrency(points, Figure().subplots()).get_ylabel().startswith("output throughput per server")
    )

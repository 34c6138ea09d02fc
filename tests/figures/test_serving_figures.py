"""Figures and tables of servers under load: what is drawn, what is left out, who leads, what a run's report says."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from serving_runs import serving_run

from wholecurve.errors import UserError
from wholecurve.figures.leads import lead_sentences, lead_table
from wholecurve.figures.outcomes import outcome_bars, outcome_counts
from wholecurve.figures.race import labelled, race_of
from wholecurve.figures.run_figures import comparisons, figure_data, run_figures, save_run_figures, source_line
from wholecurve.figures.serving import MEASURES, SERVING_PANELS, SESSION_PANELS, over_load, panels_over_load
from wholecurve.figures.serving_tables import (
    flags_table,
    interactivity_table,
    objectives_table,
    outcome_table,
    serving_table,
    session_table,
    waiting_table,
)
from wholecurve.report import print_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return serving_run(tmp_path_factory.mktemp("runs") / "mini", tuned=[("vLLM", 12)])


@pytest.fixture(scope="module")
def points(run):
    return run.points()


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def line_of(ax, gid):
    (line,) = [line for line in ax.lines if line.get_gid() == gid]
    return line


# Over the load


def test_a_measure_is_drawn_in_the_unit_of_its_label_with_every_repeat(points):
    ax = over_load(points, "p90 completion", Figure().subplots(), control=["wholecurve again"])
    rows = points[points["contender"] == "wholecurve"]
    dots, line = line_of(ax, "repeats wholecurve"), line_of(ax, "median wholecurve")
    np.testing.assert_allclose(sorted(dots.get_ydata()), sorted(rows["e2e_p90_ms"] / 1000))
    np.testing.assert_allclose(line.get_ydata(), rows.groupby("load")["e2e_p90_ms"].median() / 1000)
    assert ax.get_xlabel() == "requests in flight (concurrency)" and ax.get_ylabel() == "completion time (E2E), p90 (s)"
    assert "down is better" in texts(ax) and ax.get_xscale() == ax.get_yscale() == "log"


def test_throughput_is_per_device_and_says_its_window(points):
    ax = over_load(points.assign(devices=4, device_kind="gpu"), "throughput", Figure().subplots())
    rows = points[points["contender"] == "wholecurve"]
    expected = rows.groupby("load")["output_throughput_tok_per_s"].median() / 4
    np.testing.assert_allclose(line_of(ax, "median wholecurve").get_ydata(), expected)
    assert ax.get_ylabel() == "output throughput per GPU\n(tok/s/GPU, steady window)" and "up is better" in texts(ax)


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if not measure.higher_is_better])
def test_times_are_better_when_they_are_short(points, name):
    assert "down is better" in texts(over_load(points, name, Figure().subplots()))


def test_a_missing_percentile_is_absent_and_never_zero(points):
    few = points.assign(ttft_p90_ms=points["ttft_p90_ms"].where(points["contender"] == "wholecurve"))
    ax = over_load(few, "p90 TTFT", Figure().subplots())
    assert "not measured: vLLM (finalist 1 of 12), wholecurve again" in texts(ax)
    assert min(line_of(ax, "median wholecurve").get_ydata()) > 0
    panels = panels_over_load(points.assign(e2e_p90_ms=None), axes=Figure().subplots(2, 2).ravel())
    assert "not printed" in texts(panels[2]) and not panels[2].lines and panels[0].lines


def test_panels_have_one_axes_per_measure_also_on_a_figure_of_their_own(points):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    axes = panels_over_load(points, SERVING_PANELS[:3])
    try:
        assert [ax.get_ylabel().split(",")[0] for ax in axes] == [
            "decode speed",
            "time to first token",
            "completion time (E2E)",
        ]
        assert len(axes[0].figure.axes) == 3
    finally:
        for number in set(plt.get_fignums()) - set(before):
            plt.close(number)


def test_unknown_measures_and_mixed_loads_are_refused(points):
    with pytest.raises(UserError, match="no measure 'ITL'"):
        over_load(points, "ITL", Figure().subplots())
    mixed = points.assign(load_kind=["sessions", *points["load_kind"][1:]])
    with pytest.raises(UserError, match="load_kind"):
        over_load(mixed, "TTFT", Figure().subplots())


# Who leads


def test_each_side_leads_where_it_is_better_in_both_directions_of_better(run, points):
    race, points = labelled(race_of(run), points)
    table = lead_table(points, race.ours, race.left_out)
    # Steps of 7, 13 and 37 ms against 15.5, 17 and 23 ms: ours is ahead at 1 and 4, vLLM at 16.
    assert {tuple(rows["says"]) for _, rows in table.groupby("measure")} == {
        ("wholecurve leads", "wholecurve leads", "vLLM leads")
    }
    speed = table[table["measure"] == "decode speed"].set_index("load")
    assert float(speed.loc["1", "ahead"].rstrip("×")) == pytest.approx(15.5 / 7, rel=0.03)
    assert float(speed.loc["16", "ahead"].rstrip("×")) == pytest.approx(23 / 37, rel=0.03)
    ttft = table[table["measure"] == "TTFT"].set_index("load")
    assert float(ttft.loc["1", "ahead"].rstrip("×")) == pytest.approx(15.5 / 7, rel=0.03)
    assert list(speed["repeats ahead"]) == ["3 of 3", "3 of 3", "0 of 3"]
    assert lead_sentences(table)[0] == "decode speed: wholecurve leads at 1, 4; vLLM leads at 16"


def rows_of(values):
    """Throughput by contender: one value per repeat."""
    return pd.DataFrame(
        [
            {"contender": name, "load": 1, "repeat": i, "devices": 1, "output_throughput_tok_per_s": value}
            for name, own in values.items()
            for i, value in enumerate(own)
        ]
    )


def lead(values, **options):
    return lead_table(rows_of(values), "mine", measures=["throughput"], **options).iloc[0]


def test_an_interval_that_contains_one_shows_no_difference_and_two_repeats_decide_nothing():
    wide = {"mine": [12, 9, 13], "other": [10, 10, 10]}
    assert lead(wide)["ahead"] == "1.20×" and lead(wide)["says"] == "no difference shown"
    other_way = {"mine": wide["other"], "other": wide["mine"]}
    assert lead(other_way)["ahead"] == "0.83×" and lead(other_way)["says"] == "no difference shown"
    assert lead({"mine": [20, 20], "other": [10, 10]})["says"] == "undecided"
    assert lead({"mine": [20, 20], "other": [10, 10]})["interval"] == "n < 3"


def test_the_interval_pairs_repeats_and_shows_its_side_of_one():
    row = lead({"mine": [11, 22, 33], "other": [10, 20, 30]})
    assert row["says"] == "mine leads" and row["interval"] == "1.10–1.10", "repeats move together"
    logs = np.array([math.log(1.002), math.log(1.003), math.log(1.004)])
    close = lead({"mine": list(10 * np.exp(logs)), "other": [10, 10, 10]})
    assert close["says"] == "mine leads" and float(close["interval"].partition("–")[0]) > 1


def test_the_best_other_is_the_best_of_its_measure_and_no_control():
    values = {"mine": [10] * 3, "slow": [5] * 3, "fast": [8] * 3, "again": [99] * 3}
    assert lead(values, left_out=["again"])["best other"] == "fast"
    assert lead(values)["best other"] == "again"
    waits = rows_of({"mine": [10] * 3, "slow": [50] * 3, "fast": [8] * 3})
    waits = waits.rename(columns={"output_throughput_tok_per_s": "ttft_p50_ms"})
    row = lead_table(waits, "mine", measures=["TTFT"]).iloc[0]
    assert row["best other"] == "fast" and row["ahead"] == "0.80×", "of waits the shortest is the best"
    missing = lead({"mine": [None] * 3, "other": [5.0] * 3})
    assert missing["says"] == "not measured" and missing["ours"] == "–" and missing["its median"] == "5"
    assert lead({"mine": [1.0] * 3})["says"] == "not measured"


# The race


def test_finalists_are_found_under_the_names_that_they_ran_with(run):
    race = race_of(run)
    assert [racer.name for racer in race.racers] == ["wholecurve", "vLLM (finalist 1 of 12)", "wholecurve again"]
    assert race.ours == "wholecurve" and race.controls == ["wholecurve again"] and race.peers == [race.racers[1].name]
    assert race.labels["vLLM (finalist 1 of 12)"] == "vLLM" and race.tuning_text.endswith("vLLM 12.")
    assert [found.b.name for found in comparisons(run, "serving")] == [*race.peers, "wholecurve again"]


def test_several_finalists_keep_their_names_and_ours_are_no_peers(tmp_path):
    run = serving_run(tmp_path / "a", loads=(1, 4), repeats=1, tuned=[("wholecurve", 5)])
    frame = run.points()
    second = frame[frame["contender"] == "wholecurve (finalist 1 of 5)"].assign(
        contender="wholecurve (finalist 2 of 5)"
    )
    for i, row in enumerate(second.to_dict("records")):
        run.write_point(f"second-{i}", row, run.trace(run.point_ids()[0]))
    race = race_of(run)
    assert race.ours == "wholecurve (finalist 1 of 5)" and race.labels[race.ours] == race.ours
    assert race.peers == ["vLLM"] and set(race.left_out) == {"wholecurve (finalist 2 of 5)", "wholecurve again"}
    assert race.racers[-1].control_of == race.ours
    assert len(set(race.colours.values())) == len(race.racers) and race.best_peers == ["vLLM"]


# Tables


def test_tables_have_a_row_per_contender_and_load_with_dashes_for_what_is_missing(points):
    for table in (serving_table, waiting_table, interactivity_table, session_table, objectives_table):
        frame = table(points)
        assert len(frame) == 9 and list(frame["concurrency"][:3]) == ["1", "4", "16"], table.__name__
    assert set(waiting_table(points.assign(e2e_p90_ms=None))["E2E p90 (s)"]) == {"–"}
    assert set(session_table(points)["from cache (server)"]) == {"–"}
    assert objectives_table(points.assign(slo_share=None)).empty


def test_goodput_stands_beside_throughput_and_runs_that_kept_the_promise_are_counted(points):
    table = objectives_table(points).set_index(["contender", "concurrency"])
    kept = table.loc[("wholecurve", "1")]
    assert kept["within the objectives"] == "100.0 %" and kept["kept in"] == "3 of 3 runs"
    assert kept["goodput (tok/s)"] == kept["throughput (tok/s)"]
    slow = points.assign(slo_share=0.2, slo_met=False)
    assert set(objectives_table(slow)["kept in"]) == {"0 of 3 runs"}


def test_flags_are_grouped_by_contender_with_their_loads(points):
    assert flags_table(points).empty
    flagged = points.assign(flags=[["occupancy: 1.2 is above 1.05"] if load > 1 else [] for load in points["load"]])
    table = flags_table(flagged)
    assert list(table["loads"]) == ["4, 16"] * 3 and list(table["points"]) == [6] * 3
    assert table["as"][0] == "1.2 is above 1.05"


# Failures


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    fails = {("vLLM", 16): 4, ("vLLM", 4): 40}
    return serving_run(tmp_path_factory.mktemp("runs") / "failing", fails=fails, usd=0.5, requests=34)


def test_bars_show_the_points_with_failures_and_their_counts(failing):
    points = failing.points().query("load != 16 or repeat != 3")  # bars of different totals
    ax = outcome_bars(points, Figure().subplots())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["vLLM, load 4", "vLLM, load 16"]
    widths = {}
    for bar in ax.patches:
        widths.setdefault(bar.get_gid(), []).append(bar.get_width())
    assert list(widths) == ["completed", "refused"]
    np.testing.assert_allclose(np.sum(list(widths.values()), axis=0), [1, 1])
    counts = outcome_counts(points).loc[("vLLM", 16)]
    assert counts["refused"] == 8 and f"8 of {counts.sum()}" in texts(ax)
    assert outcome_table(points).set_index("contender").loc["vLLM", "did not complete"].endswith("refused")
    with pytest.raises(UserError, match="no failures"):
        outcome_bars(points[points["contender"] == "wholecurve"], Figure().subplots())
    with pytest.raises(UserError, match="outcomes"):
        outcome_counts(points.drop(columns="outcomes"))


def test_a_point_where_all_failed_is_on_no_curve_and_breaks_nothing(tmp_path):
    run = serving_run(tmp_path / "dead", loads=(1, 4, 16), fails={("vLLM", 4): 1000})
    for point_id in run.point_ids():
        row = run.read(f"points/{point_id}")
        if (row["contender"], row["load"]) == ("vLLM", 4):
            dead = {name: None for name, value in row.items() if name.endswith(("_ms", "tok_per_s")) and value}
            refused = [t for t in run.trace(point_id) if not t.completed]
            run.write_point(point_id, row | dead | {"n_completed": 0, "outcomes": {"refused": 99}}, refused)
    found = comparisons(run, "serving")[0]
    assert sorted(found.b.points["load"].unique()) == [1, 16]
    assert (
        lead_table(run.points(), "wholecurve", ["wholecurve again"])
        .query("load == '4'")["says"]
        .eq("not measured")
        .all()
    )
    console = Console(record=True, width=180)
    print_run(console, run)
    assert "failures" in console.export_text()


# The run


def test_a_run_writes_its_figures_with_data_that_are_numbers(failing, tmp_path):
    names = [figure.name for figure in run_figures(failing)]
    assert names[:4] == [
        "serving_over_load", "serving_throughput_vs_speed", "serving_tokens_per_dollar_vs_latency", "serving_outcomes",
    ]  # fmt: skip
    assert "serving_multipliers_vllm" in names and len(set(names)) == len(names)
    for figure in run_figures(failing):
        assert not [name for name in figure_data(figure) if name in ("settings", "outcomes", "flags", "server_started")]
    paths = save_run_figures(failing, tmp_path)
    assert all(path.stat().st_size > 5000 for path in paths)
    sidecar = json.loads((tmp_path / "serving_over_load.json").read_text())
    assert "vLLM" in sidecar["alt"] and "p90 completion" in sidecar["caption"]


def test_the_foot_of_a_figure_says_what_was_measured_where(run, tmp_path):
    assert ", measured (cpu): test, 2 cores, no GPU; tiny" in source_line(run)
    far = serving_run(tmp_path / "far", loads=(1,), repeats=1)
    for point_id in far.point_ids():
        row = far.read(f"points/{point_id}") | {"source": "measured (gpu)", "device_kind": "gpu"}
        far.write_point(point_id, row, far.trace(point_id))
    assert ", measured (gpu); client: test, 2 cores" in source_line(far)


def test_without_a_rate_in_the_plan_there_is_no_cost_figure(run):
    assert not [figure.name for figure in run_figures(run) if "dollar" in figure.name]


def test_sessions_have_panels_and_loads_of_their_own(tmp_path):
    run = serving_run(tmp_path / "agents", kind="sessions", loads=(1, 4), repeats=2)
    figures = {figure.name: figure for figure in run_figures(run)}
    axes = Figure(figsize=(12, 8)).subplots(2, 2)
    figures["agents_over_load"].make(axes)
    assert [ax.get_ylabel().partition(",")[0] for ax in axes.ravel()][:2] == [
        "p90 decode speed",
        "p90 end-to-end speed",
    ]
    assert {ax.get_xlabel() for ax in axes.ravel()} == {"sessions in flight"} and len(SESSION_PANELS) == 4
    assert "sessions in flight of" in _x_label(figures["agents_multipliers_vllm"])
    assert list(session_table(run.points()))[1] == "sessions in flight"


def _x_label(figure):
    ax = Figure().subplots()
    figure.make(ax)
    return ax.get_xlabel()


def test_the_report_has_every_table_and_sentence(run):
    console = Console(record=True, width=200)
    print_run(console, run)
    text = console.export_text()
    for wanted in (
        "Serving: median", "What users wait for", "both definitions", "TTFT ≤ 500 ms and TPOT ≤ 40 ms for 90 %",
        "decode speed: wholecurve leads at 1, 4; vLLM leads at 16", "How requests ended", "control: the same engine",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "What points say against themselves" not in text


def test_probes_of_a_search_are_in_no_curve_and_in_a_table_of_their_own(tmp_path):
    run = serving_run(tmp_path / "search", loads=(1, 4), repeats=1)
    row = run.points().iloc[0].to_dict() | {"workload": "maximum_load", "load": 7, "order": 99}
    run.write_point(
        "maximum-load-1", json.loads(json.dumps(row, default=lambda v: v.item())), run.trace(run.point_ids()[0])
    )
    console = Console(record=True, width=200)
    print_run(console, run)
    assert "Search for the largest load that keeps TTFT" in console.export_text()
    assert all(7 not in set(figure.data["load"]) for figure in run_figures(run) if "load" in figure.data)

"""Colours, contexts and ticks of the figures."""

import matplotlib
import numpy as np
import pytest
from figure_frames import decode_points
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures import contender_colours, dark, light, throughput_vs_speed
from wholecurve.figures.style import CONTROL_COLOUR, OKABE_ITO, SOURCES, contrast, readable, source_style
from wholecurve.figures.ticks import (
    HumanLogLocator,
    count_axis,
    format_count,
    format_multiplier,
    format_rate,
    pad_limits,
)


def test_colours_do_not_depend_on_order_and_keep_known_engines():
    names = ["zeta", "wholecurve", "alpha", "transformers"]
    colours = contender_colours(names)
    assert colours == contender_colours(names[::-1])
    assert colours["wholecurve"] == contender_colours(["wholecurve"])["wholecurve"] == OKABE_ITO["blue"]
    assert len(set(colours.values())) == 4


def test_controls_are_grey_and_take_no_colour():
    colours = contender_colours(["a", "a (again)"], control=["a (again)"])
    assert colours["a (again)"] == CONTROL_COLOUR
    assert colours["a"] == contender_colours(["a"])["a"]


def test_more_contenders_than_colours_are_refused():
    with pytest.raises(UserError, match="at most 6"):
        contender_colours([f"engine {i}" for i in range(7)])


def test_a_figure_set_keeps_its_colours_in_a_figure_with_fewer_contenders():
    colours = contender_colours(["alpha", "beta"])
    ax = Figure().subplots()
    throughput_vs_speed(decode_points({"beta": 1.0}), ax, colours=colours)
    assert ax.lines[0].get_color() == colours["beta"] != contender_colours(["beta"])["beta"]
    with pytest.raises(UserError, match="no colour for gamma"):
        throughput_vs_speed(decode_points({"gamma": 1.0}), Figure().subplots(), colours=colours)


def test_sources_differ_in_marker_and_only_measured_is_filled():
    assert len({style.marker for style in SOURCES.values()}) == len(SOURCES)
    assert {name for name, style in SOURCES.items() if style.filled} == {
        "measured (gpu)",
        "measured (cpu)",
        "measured (device unstated)",
    }
    assert source_style("model (roofline)").linestyle == source_style("published").linestyle == "--"
    with pytest.raises(UserError, match="unknown source 'guess'"):
        source_style("guess")


def test_contexts_restore_every_setting_and_differ():
    before = dict(matplotlib.rcParams)
    with light():
        white = matplotlib.rcParams["figure.facecolor"]
    with dark():
        black = matplotlib.rcParams["figure.facecolor"]
    assert dict(matplotlib.rcParams) == before
    assert contrast(white, black) > 15


def test_labels_on_a_dark_axes_are_readable_outside_of_the_contexts():
    with dark():
        ax = Figure().subplots()
    throughput_vs_speed(decode_points({"wholecurve": 1.0}), ax)
    assert ax.texts and all(contrast(text.get_color(), ax.get_facecolor()) >= 4.5 for text in ax.texts)


@pytest.mark.parametrize("style", [light, dark])
@pytest.mark.parametrize("colour", OKABE_ITO.values())
def test_label_colours_are_readable_on_both_backgrounds(style, colour):
    with style():
        background = matplotlib.rcParams["axes.facecolor"]
        assert contrast(readable(colour, background), background) >= 4.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "8"),
        (1000, "1000"),
        (1024, "1K"),
        (1536, "1.5K"),
        (2000, "2000"),
        (32768, "32K"),
        (2**20, "1M"),
        (2.5, "2.5"),
    ],
)
def test_counts_use_binary_k_only_where_it_is_exact(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (2, "2"),
        (12.5, "12.5"),
        (300, "300"),
        (3000, "3,000"),
        (20000, "20,000"),
        (2e5, "200k"),
        (1.5e6, "1.5M"),
    ],
)
def test_rates_are_written_for_people(value, text):
    assert format_rate(value) == text


def test_multipliers_have_a_sign():
    assert [format_multiplier(v) for v in (0.5, 1, 1.25)] == ["0.5×", "1×", "1.25×"]


@pytest.mark.parametrize("limits", [(7, 130), (10, 11), (0.9, 1.1), (3, 30000), (0.02, 5e6), (99, 101)])
def test_log_ticks_are_few_round_and_inside(limits):
    ticks = HumanLogLocator().tick_values(*limits)
    assert 3 <= len(ticks) <= 9
    assert limits[0] <= ticks.min() and ticks.max() <= limits[1]
    mantissas = ticks / 10.0 ** np.floor(np.log10(ticks) + 1e-12)
    np.testing.assert_allclose(mantissas, np.round(mantissas, 3), rtol=0, atol=1e-9)


def test_count_axis_ticks_every_tested_value_and_drops_crowded_labels():
    ax = Figure().subplots()
    ax.plot([1, 1024], [1, 1])
    count_axis(ax.xaxis, [1, 2, 1000, 1024, 2])
    ax.figure.draw_without_rendering()
    assert ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 2
    assert list(ax.get_xticks()) == [1, 2, 1000, 1024]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "1000", ""]


def test_limits_leave_the_room_that_labels_ask_for():
    ax = Figure().subplots()
    ax.set_xscale("log")
    pad_limits(ax.xaxis, [1, 10], reserve=[(10, 100), (3, 50)])
    room = ax.get_window_extent().x1 - ax.transData.transform((10, 1))[0]
    assert room == pytest.approx(100, abs=1)
    pad_limits(ax.xaxis, [5, 5])
    low, high = ax.get_xlim()
    assert low < 5 < high and high / low >= 1.6

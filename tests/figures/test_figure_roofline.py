"""The roofline figure: where points and roofs stand, what is refused."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures.roofline import roofline, time_over_bound
from wholecurve.profiling.devices import Ceiling, Device

TOY = Device(
    "Toy",
    "sm_90",
    1000,
    (
        Ceiling("memory_bytes_per_s", 1e12, "datasheet", "sheet"),
        Ceiling("bfloat16_flops_per_s", 100e12, "datasheet", "sheet"),
        Ceiling("memory_bytes_per_s", 0.9e12, "measured read", "run"),
        Ceiling("bfloat16_flops_per_s", 80e12, "measured GEMM", "run"),
    ),
)


def rows(*given):
    base = dict(
        kernel="toy", unit="bfloat16", source="static (compiled, not run)", median_us=None, p10_us=None, p90_us=None
    )
    return pd.DataFrame([base | one for one in given])


LOW, HIGH = dict(case="low", flops=10**9, bytes_min=10**8), dict(case="high", flops=10**12, bytes_min=10**8)


def measured(us, **fields):
    return fields | dict(source="measured (gpu)", median_us=us, p10_us=us * 0.9, p90_us=us * 1.2)


def points(ax):
    return [line for line in ax.lines if len(line.get_xdata()) == 1 and line.get_marker() in "Dos"]


def test_static_rows_stand_on_the_roof_hollow():
    ax = roofline(rows(LOW, HIGH), [TOY], Figure().subplots())
    low, high = points(ax)
    assert (low.get_xdata()[0], low.get_ydata()[0]) == pytest.approx((10, 10))  # 10 FLOP/B at 1 TB/s: 10 TFLOP/s
    assert (high.get_xdata()[0], high.get_ydata()[0]) == pytest.approx((10_000, 100))  # the flat part
    assert low.get_markerfacecolor() == "none" and low.get_marker() == "D"


def test_a_measured_row_stands_at_its_rate_filled():
    ax = roofline(rows(measured(200, **LOW)), [TOY], Figure().subplots())
    (point,) = points(ax)
    assert point.get_ydata()[0] == pytest.approx(10**9 / 200e-6 / 1e12) and point.get_markerfacecolor() != "none"
    (whisker,) = ax.collections
    assert sorted(whisker.get_segments()[0][:, 1]) == pytest.approx([10**9 / 240e-6 / 1e12, 10**9 / 180e-6 / 1e12])


def test_the_dashed_roof_is_the_datasheet_and_the_solid_one_was_measured():
    ax = roofline(rows(LOW, HIGH), [TOY], Figure().subplots())
    dashed, solid = [line for line in ax.lines if len(line.get_xdata()) > 10]
    assert dashed.get_linestyle() == "--" and solid.get_linestyle() == "-"
    x = dashed.get_xdata()
    assert np.allclose(dashed.get_ydata(), np.minimum(x, 100)) and np.allclose(
        solid.get_ydata(), np.minimum(0.9 * x, 80)
    )
    assert any("Toy: 100 TFLOP/s, 1 TB/s, ridge 100" in text.get_text() for text in ax.texts)


def test_axes_say_unit_and_byte_class_and_kernels_without_flops():
    ax = roofline(rows(LOW, dict(kernel="copy", case="x", flops=0, bytes_min=10)), [TOY], Figure().subplots())
    assert "FLOP per compulsory byte" in ax.get_xlabel() and "not drawn: copy" in ax.get_xlabel()
    assert ax.get_ylabel() == "TFLOP/s (bfloat16)" and ax.get_xscale() == ax.get_yscale() == "log"


@pytest.mark.parametrize(
    ("frame", "unit", "message"),
    [
        (rows(measured(50, **LOW)), "bfloat16", "toy low is at 200% of the datasheet roof of Toy"),
        (rows(LOW), "float8", "rows run on bfloat16, this roof is of float8"),
        (rows(LOW).iloc[:0], "bfloat16", "no row to draw"),
        (rows(LOW).drop(columns="unit"), "bfloat16", "lack unit"),
        (rows(LOW | {"unit": "vector"}), "vector", "Toy has no ceilings for vector"),
    ],
)
def test_what_cannot_be_is_refused(frame, unit, message):
    with pytest.raises(UserError, match=message):
        roofline(frame, [TOY], Figure().subplots(), unit=unit)


def test_times_stand_over_their_bounds():
    frame = rows(measured(200, form="triton", **LOW), measured(300, form="eager", **LOW)).assign(
        bound_us=100.0, threads=1
    )
    ax = time_over_bound(frame, Figure().subplots())
    medians = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "s"]
    assert medians == [200, 300] and [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "|"] == [100]
    both = time_over_bound(frame.assign(threads=[1, 2], form="cpu"), Figure().subplots())
    assert [text.get_text() for text in both.get_legend().texts] == ["cpu, 1 threads", "cpu, 2 threads", "bound"]
    with pytest.raises(UserError, match="no row was measured"):
        time_over_bound(rows(LOW).assign(form="x", bound_us=1.0, threads=1), Figure().subplots())

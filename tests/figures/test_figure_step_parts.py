"""Figures and tables of a step taken apart: what stands where, what is named as an error, what is refused."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from wholecurve.errors import UserError
from wholecurve.figures import dark, light, save_figure
from wholecurve.figures.labels import label_boxes
from wholecurve.figures.step_parts import COLOURS, COLUMNS, NAMES, STACK, attained_shares, step_parts, step_times
from wholecurve.figures.step_tables import (
    ceiling_table,
    error_table,
    overhead_table,
    part_table,
    step_table,
    thread_table,
)
from wholecurve.studies.steps.part_work import OUTSIDE, PARTS, WORKING

LOADS = {"decode": (1, 8, 64), "prefill": (128, 2048)}
# ms per step at load 1 on one thread; a step of n tokens takes n ** 0.5 times as long, two threads take half
TIMES = dict(embedding=0.1, norm=0.2, qkv=1.0, attention=2.0, output=0.5, gate_up=4.0, down=2.5, head=3.0)
TIMES |= dict(waiting=0.4, outside=0.3)
SHARE = 0.8  # of the ceiling, of every working part


def step_rows(bounds=True, share=SHARE):
    rows = []
    for kind, loads in LOADS.items():
        for threads in (1, 2):
            for load in loads:
                factor = load**0.5 / threads
                shared = dict(
                    kind=kind, source="measured (cpu)", threads=threads, new_tokens=load, n_samples=3, note=None
                )

                def row(form, part, ms, bound=None, shared=shared):
                    limits = dict(note=None, bound_ms=bound, attained=None if bound is None else bound / ms)
                    times = dict(median_ms=ms, p10_ms=0.9 * ms, p90_ms=1.2 * ms)
                    return shared | dict(form=form, part=part) | times | limits

                for part, ms in TIMES.items():
                    known = bounds and part in WORKING
                    rows.append(row("native", part, factor * ms, share * factor * ms if known else None))
                whole = factor * sum(TIMES.values())
                bound = share * factor * sum(TIMES[part] for part in WORKING) if bounds else None
                rows.append(row("native", "step", whole, bound))
                rows.append(row("native with timers", "step", 1.01 * whole))
                rows.append(row("torch", "step", 3 * whole, bound))
    return pd.DataFrame(rows)


def bars(ax, prefix):
    """{name: heights} of the bars whose group id begins so."""
    found = {}
    for patch in ax.patches:
        if (patch.get_gid() or "").startswith(prefix):
            found.setdefault(patch.get_gid().removeprefix(f"{prefix} "), []).append(patch)
    return found


def test_names_cover_all_parts_of_the_native_form():
    drawn = [part for _, parts, _, _ in STACK for part in parts]
    assert sorted(drawn) == sorted([*PARTS, OUTSIDE]) and tuple(COLOURS) == WORKING and set(WORKING) < set(NAMES)


@pytest.mark.parametrize(("kind", "threads"), [("decode", 1), ("decode", 2), ("prefill", 2)])
def test_parts_are_stacked_per_token_and_bounds_stand_hollow_beside_them(kind, threads):
    ax = step_parts(step_rows(), Figure().subplots(), kind=kind, threads=threads)
    loads = np.array(LOADS[kind])
    per_token = loads**0.5 / threads / loads
    top = np.zeros(len(loads))
    for name, parts, colour, hatch in STACK:
        group = bars(ax, "measured")[name]
        height = sum(TIMES[part] for part in parts) * per_token
        assert [bar.get_height() for bar in group] == pytest.approx(height)
        assert [bar.get_y() for bar in group] == pytest.approx(top)
        top = top + height
        assert all(bar.get_edgecolor()[:3] == to_rgb(colour) for bar in group)
        assert all((bar.get_facecolor()[3] == 0) == bool(hatch) for bar in group)
    limits, top = bars(ax, "bound"), np.zeros(len(loads))
    assert list(limits) == [NAMES[part] for part in WORKING]
    for part in WORKING:
        group = limits[NAMES[part]]
        assert [bar.get_height() for bar in group] == pytest.approx(SHARE * TIMES[part] * per_token)
        assert [bar.get_y() for bar in group] == pytest.approx(top)
        assert all(bar.get_facecolor()[3] == 0 and bar.get_linestyle() == "--" for bar in group)
        top = top + SHARE * TIMES[part] * per_token
    (whole,) = ax.collections
    assert [line[0][1] for line in whole.get_segments()] == pytest.approx(sum(TIMES.values()) * per_token)
    assert [label.get_text() for label in ax.get_xticklabels()] == (
        ["1", "8", "64"] if len(loads) == 3 else ["128", "2K"]
    )
    assert ax.get_ylabel() == "ms per new token" and "error" not in ax.get_xlabel()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [name for name, *_ in STACK][::-1]
    first = bars(ax, "measured")["head"][0], bars(ax, "bound")["head"][0]
    assert first[0].get_x() + first[0].get_width() < first[1].get_x()


def line_of(ax, gid):
    (line,) = [line for line in ax.lines if line.get_gid() == gid]
    return line


def test_attained_shares_are_bound_over_time_with_the_ceiling_at_one_hundred():
    rows = step_rows()
    rows.loc[(rows["part"] == "down") & (rows["new_tokens"] == 8), "attained"] = 0.5
    ax = attained_shares(rows, Figure().subplots(), kind="decode", threads=1, turn=21.4)
    assert line_of(ax, "down share").get_xydata().tolist() == [[1, 80], [8, 50], [64, 80]]
    whole = SHARE * sum(TIMES[part] for part in WORKING) / sum(TIMES.values())
    assert line_of(ax, "step share").get_ydata() == pytest.approx([100 * whole] * 3)
    assert line_of(ax, "step share").get_linewidth() > line_of(ax, "down share").get_linewidth()
    assert set(line_of(ax, "ceiling").get_ydata()) == {100} and set(line_of(ax, "turn").get_xdata()) == {21.4}
    texts = [text.get_text() for text in ax.texts]
    assert {*NAMES.values(), "21 rows: arithmetic bounds products"} <= set(texts)
    assert ax.get_ylim()[0] == 0 and "measured ceiling (%)" in ax.get_ylabel() and ax.get_xscale() == "log"


@pytest.mark.parametrize("turn", [None, 0.5, 65.0])
def test_a_ridge_outside_of_the_loads_is_not_drawn(turn):
    ax = attained_shares(step_rows(), Figure().subplots(), kind="decode", threads=1, turn=turn)
    assert not [line for line in ax.lines if line.get_gid() == "turn"]


def test_what_is_above_a_ceiling_is_drawn_and_named():
    rows = step_rows()
    above = (rows["part"] == "head") & (rows["new_tokens"] == 8) & (rows["form"] == "native")
    rows.loc[above, "attained"] = 1.25
    for ax in (
        attained_shares(rows, Figure().subplots(), kind="decode", threads=1),
        step_parts(rows, Figure().subplots(), kind="decode", threads=1),
    ):
        assert ax.get_xlabel().endswith("\nabove a measured ceiling, an error: head at 8 (125%)")
    shares = attained_shares(rows, Figure().subplots(), kind="decode", threads=1)
    assert shares.get_ylim()[1] > 125 and line_of(shares, "head share").get_ydata()[1] == 125
    many = attained_shares(step_rows(share=1.1), Figure().subplots(), kind="decode", threads=1)
    assert many.get_xlabel().endswith("attention at 1 (110%), output at 1 (110%), gate, up at 1 (110%) …")


def test_whole_steps_of_both_forms_over_their_bound():
    ax = step_times(step_rows(), Figure().subplots(), threads=2)
    lines = {tuple(line.get_xdata()): line.get_ydata() for line in ax.lines if line.get_gid() == "bound"}
    assert set(lines) == set(LOADS.values())
    whole = sum(TIMES.values()) * np.array([1, 8, 64]) ** 0.5 / 2
    drawn = [line.get_ydata() for line in ax.lines if line.get_gid() == "step median_ms" and len(line.get_xdata()) == 3]
    assert drawn[0] == pytest.approx(whole) and drawn[1] == pytest.approx(3 * whole)
    working = sum(TIMES[part] for part in WORKING) / sum(TIMES.values())
    assert lines[LOADS["decode"]] == pytest.approx(SHARE * working * whole)
    assert {"native", "torch", "bound"} <= {text.get_text() for text in ax.texts}
    assert ax.get_xscale() == ax.get_yscale() == "log" and ax.get_ylabel() == "ms per step"
    whiskers = ax.collections[0].get_segments()
    assert whiskers[0][:, 1].tolist() == pytest.approx([0.9 * whole[0], 1.2 * whole[0]])


@pytest.mark.parametrize("draw", [step_parts, attained_shares])
@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        (lambda rows: rows.drop(columns="bound_ms"), {}, "the rows lack bound_ms"),
        (lambda rows: rows, {"kind": "training"}, "kind is 'training'; it must be decode or prefill"),
        (lambda rows: rows, {"threads": 4}, r"no decode step was measured on 4 threads; there are rows of \[1, 2\]"),
        (lambda rows: rows[rows["kind"] == "prefill"], {}, "no decode step was measured on 1 thread"),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(draw, change, asked, message):
    with pytest.raises(UserError, match=message):
        draw(change(step_rows()), Figure().subplots(), **{"kind": "decode", "threads": 1} | asked)


def test_a_record_that_is_not_complete_shows_what_it_has():
    rows = step_rows()
    rows = rows[(rows["threads"] == 1) | (rows["kind"] == "decode")]
    assert step_table(rows, 2)["new tokens"].tolist() == [1, 8, 64] == overhead_table(rows, 2)["new tokens"].tolist()
    assert thread_table(rows, 1, 2)["new tokens"].tolist() == [1, 8, 64]
    ax = step_times(rows, Figure().subplots(), threads=2)
    assert [line.get_xdata().tolist() for line in ax.lines if line.get_gid() == "bound"] == [[1, 8, 64]]
    with pytest.raises(UserError, match="no step was measured on 3 threads"):
        step_times(rows, Figure().subplots(), threads=3)


def test_without_bounds_there_is_no_share_and_no_hollow_bar():
    rows = step_rows(bounds=False)
    with pytest.raises(UserError, match="the rows have no bounds; measure them with ceilings"):
        attained_shares(rows, Figure().subplots(), kind="decode", threads=1)
    assert not bars(step_parts(rows, Figure().subplots(), kind="decode", threads=1), "bound")
    ax = step_times(rows, Figure().subplots(), threads=1)
    assert not [line for line in ax.lines if line.get_gid() == "bound"]


@pytest.mark.parametrize("style", [light, dark])
def test_names_do_not_cover_each_other_in_either_style(style):
    with style():
        for draw in (
            lambda ax: attained_shares(step_rows(), ax, kind="decode", threads=1, turn=20.0),
            lambda ax: step_times(step_rows(), ax, threads=1),
        ):
            ax = draw(Figure().subplots())
            boxes = [box for name, box in label_boxes(ax).items() if name.split(": ")[1]]
            for i, one in enumerate(boxes):
                for other in boxes[:i]:
                    apart = one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
                    assert apart, label_boxes(ax)


def test_figures_are_written_in_light_and_dark(tmp_path):
    rows = step_rows()
    for name, draw in (
        ("parts", lambda ax: step_parts(rows, ax, kind="decode", threads=2)),
        ("shares", lambda ax: attained_shares(rows, ax, kind="prefill", threads=2)),
        ("steps", lambda ax: step_times(rows, ax, threads=2)),
    ):
        texts = dict(title="t", caption="c", alt="a", source="s")
        first = save_figure(draw, name, tmp_path / "1", data=rows, **texts)
        again = save_figure(draw, name, tmp_path / "2", data=rows, **texts)
        assert {kind: path.read_bytes() for kind, path in first.items() if kind != "json"} == {
            kind: path.read_bytes() for kind, path in again.items() if kind != "json"
        }
        assert first["light"].read_bytes() != first["dark"].read_bytes()


# ---- tables ----


def test_whole_steps_as_a_table():
    table = step_table(step_rows(), 1)
    assert table["new tokens"].tolist() == [1, 8, 64, 128, 2048] and table["step"].tolist()[2:4] == [
        "decode",
        "prefill",
    ]
    assert table["native ms"][0] == "14 (12.6–16.8)" and set(table["torch / native"]) == {"3.00×"}
    assert table["bound ms"][0] == "10.4" and table["of bound"][0] == "74%" and table["torch of bound"][0] == "25%"
    bare = step_rows(bounds=False)
    bare = step_table(bare[(bare["form"] != "torch") & (bare["kind"] == "decode")], 2)
    assert set(bare["torch ms"]) == set(bare["torch / native"]) == set(bare["bound ms"]) == {"–"} and len(bare) == 3


def test_parts_as_a_table():
    rows = step_rows()
    table = part_table(rows, "decode", 1)
    assert table.index.tolist() == [
        *("embedding", "norm", "q, k, v", "attention", "output", "gate, up", "down", "head"),
        *("waiting", "outside", "whole step"),
    ]
    assert table.columns.tolist() == [1, 8, 64] and table.loc["down"].tolist() == ["2.5", "7.07", "20"]
    assert table.index.name == "median, 1 thread"
    attained = part_table(rows, "decode", 1, "attained")
    assert attained.index.tolist() == ["q, k, v", "attention", "output", "gate, up", "down", "head", "whole step"]
    assert set(attained.loc["head"]) == {"80%"}
    shares = part_table(rows, "decode", 1, "share")
    assert "whole step" not in shares.index and shares.loc["gate, up", 1] == f"{4 / sum(TIMES.values()):.0%}"
    assert part_table(rows, "prefill", 2, "bound_ms").loc["head", 128] == "13.6"


def test_what_is_no_product_as_a_table():
    table = overhead_table(step_rows(), 1)
    first = table.iloc[0].to_dict()
    assert first == {
        "step": "decode", "new tokens": 1, "norms, embedding ms": "0.3", "waiting ms": "0.4", "outside ms": "0.3",
        "of the parts": f"{1.0 / sum(TIMES.values()):.1%}", "timers add": "+1.0%",
    }  # fmt: skip
    assert len(table) == 5


def test_threads_as_a_table():
    rows = step_rows()
    slow = (rows["threads"] == 2) & (rows["form"] == "native") & (rows["part"] == "step")
    rows.loc[slow, "median_ms"] *= 2
    table = thread_table(rows, 1, 2)
    assert table.columns.tolist() == ["step", "new tokens", "ms, 1 thread", "ms, 2 threads", "faster", "by the bounds"]
    assert set(table["faster"]) == {"1.00×"} and set(table["by the bounds"]) == {"2.00×"}
    assert set(thread_table(step_rows(bounds=False), 1, 2)["by the bounds"]) == {"–"}


def test_ceilings_as_a_table():
    shared = {"threads": 1, "unit": "byte/s", "when": "before"}
    rows = [shared | {"kind": "torch", "value": 20e9}, shared | {"kind": "native", "value": 30e9}]
    rows += [rows[0] | {"when": "after", "value": 40e9}]
    table = ceiling_table(rows)
    assert table.to_dict("records") == [
        {"threads": 1, "what": "GB/s read", "kind": "torch", "before": "20.0", "after": "40.0", "bounds": "used"},
        {"threads": 1, "what": "GB/s read", "kind": "native", "before": "30.0", "after": "–", "bounds": ""},
    ]
    assert ceiling_table([]).iloc[0, 0] == "no ceilings were measured"


def test_notes_as_a_table():
    rows = step_rows().assign(requests=1)
    assert error_table(rows).iloc[0, 0].startswith("no part above a measured ceiling")
    rows.loc[3, "note"] = "error: 120% of the measured memory ceiling"
    (found,) = error_table(rows).to_dict("records")
    assert found["part"] == "attention" and found["note"].startswith("error: 120%")
    assert set(COLUMNS) <= set(rows.columns)

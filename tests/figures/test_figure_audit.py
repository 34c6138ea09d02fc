"""The figures of the audit: what they draw of the published numbers, and which frames they refuse."""

import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from wholecurve.curves.claims import audit, baseline_handicap, published_ratios
from wholecurve.curves.claims.nouns import Published
from wholecurve.errors import UserError
from wholecurve.figures import data_sha256
from wholecurve.figures.audit import DODGE, baseline_handicap_curve, decode_identity, prefill_over_baselines
from wholecurve.figures.audit_framings import FRAMINGS, framing_plot
from wholecurve.figures.audit_rows import occupancy_plot, verdict_plot
from wholecurve.figures.inline import inline_with_palette, palette_png
from wholecurve.figures.labels import label_boxes
from wholecurve.figures.published_figures import (
    AS_PUBLISHED,
    PATCHED,
    headline_framings,
    occupancy_rows,
    published_figures,
    save_published_figures,
    verdict_counts,
)
from wholecurve.figures.style import dark, light
from wholecurve.readers.published import read_claims

PUBLISHED = read_claims(Path(__file__).parents[2] / "data" / "published")
RATIOS = published_ratios(PUBLISHED)
PREFILL = RATIOS[RATIOS["load_kind"] == "step_tokens"]
DECODE = RATIOS[RATIOS["load_kind"] == "requests_per_gpu"]
HANDICAP = baseline_handicap(PUBLISHED, PATCHED, AS_PUBLISHED)
FRAMED = headline_framings(PUBLISHED)
SIDES = occupancy_rows(PUBLISHED)
COUNTS = verdict_counts(audit(PUBLISHED))


def axes():
    return Figure().subplots()


def drawn(ax, gid):
    (artist,) = [artist for artist in (*ax.lines, *ax.collections) if artist.get_gid() == gid]
    return artist


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def bars_of(ax, gid):
    return [(x, low, high) for (x, low), (_, high) in drawn(ax, gid).get_segments()]


def test_prefill_is_drawn_over_both_baselines_with_the_rounding_of_each_digit():
    ax = prefill_over_baselines(PREFILL, axes())
    for against, values in ((PATCHED, [1.16, 1.14, 1.14, 1.21, 1.37]), (AS_PUBLISHED, [1.07, 1.05, 1.02, 1.00, 0.99])):
        line = drawn(ax, f"value {against}")
        assert list(line.get_xdata()) == [4096, 8192, 16384, 32768, 65536]
        assert list(line.get_ydata()) == values
        rows = PREFILL[PREFILL["against"] == against]
        assert bars_of(ax, f"bar {against}") == list(zip(rows["load"], rows["low"], rows["high"]))
        assert line.get_linestyle() == "--" and line.get_markerfacecolor() == ax.get_facecolor()
    assert bars_of(ax, f"bar {AS_PUBLISHED}")[-1] == (65536, 0.975, 1.005)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4K", "8K", "16K", "32K", "64K"]
    assert ax.get_xscale() == "log" and set(drawn(ax, "one").get_ydata()) == {1}


def test_prefill_says_who_is_ahead_of_what_and_how_often_it_was_run():
    ax = prefill_over_baselines(PREFILL, axes())
    assert ax.get_ylabel() == "non-cached input throughput per GPU\nof Backboard over the baseline (×)"
    assert "above 1: Backboard is ahead" in texts(ax) and "▽ published" in texts(ax)
    assert "DeepInfer\n(own patched run)\nn = 1 |" in texts(ax)
    assert "DeepInfer\n(published figure)\nn = 1 / unstated" in texts(ax)
    assert {"1.37×", "0.99×", "1.00×"} <= {text.get_text() for text in ax.texts}
    unstated = prefill_over_baselines(PREFILL.assign(n=np.nan), axes())
    assert "n = unstated" in texts(unstated)


def test_rows_in_any_order_give_the_same_line_and_colours_can_be_given():
    ax = prefill_over_baselines(PREFILL.iloc[::-1], axes(), colours={PATCHED: "#000000", AS_PUBLISHED: "#111111"})
    assert list(drawn(ax, f"value {PATCHED}").get_ydata()) == [1.16, 1.14, 1.14, 1.21, 1.37]
    assert drawn(ax, f"value {PATCHED}").get_color() == "#000000"


def test_decode_draws_both_metrics_at_the_same_height_and_counts_where_they_agree():
    ax = decode_identity(DECODE, axes())
    throughput, speed = (drawn(ax, f"value {metric}") for metric in ("output throughput per GPU", "decode speed"))
    assert list(throughput.get_ydata()) == list(speed.get_ydata()) == [1.12, 1.11, 1.10, 1.10, 1.11, 1.09]
    loads = np.array([8, 16, 32, 64, 128, 256])
    np.testing.assert_allclose(throughput.get_xdata(), loads / DODGE)
    np.testing.assert_allclose(speed.get_xdata(), loads * DODGE)
    bars = bars_of(ax, "bar decode speed")
    np.testing.assert_allclose(bars[0], (8 * DODGE, 1.115, 1.125))
    assert "n = 1  ·  the same digits at 6 of 6 loads" in texts(ax)
    (shared,) = [text for text in ax.texts if text.get_text() == "1.12×"]  # one number for two marks, between them
    assert shared.xy == (8, 1.12)


def test_where_the_two_metrics_differ_the_key_says_so_and_both_are_written():
    other = DECODE.copy()
    other.loc[other["id"] == "deepinfer-decode-speed-8", ["ratio", "low", "high"]] = (1.30, 1.295, 1.305)
    ax = decode_identity(other, axes())
    assert "the same digits at 5 of 6 loads" in texts(ax)
    assert {"1.12×", "1.30×"} <= {text.get_text() for text in ax.texts}


def test_digits_are_written_as_wide_as_their_rounding_says():
    coarse = PREFILL[PREFILL["against"] == PATCHED].assign(ratio=1.2, low=1.15, high=1.25)
    assert "1.2×" in {text.get_text() for text in prefill_over_baselines(coarse, axes()).texts}
    exact = coarse.assign(low=1.2, high=1.2)
    assert "1.20×" in {text.get_text() for text in prefill_over_baselines(exact, axes()).texts}


def test_handicap_draws_the_share_of_the_published_rate_with_its_interval():
    ax = baseline_handicap_curve(HANDICAP, axes(), run="the patched run", as_published="the figure")
    expected = [1.07 / 1.16, 1.05 / 1.14, 1.02 / 1.14, 1.00 / 1.21, 0.99 / 1.37]
    np.testing.assert_allclose(drawn(ax, "value the patched run").get_ydata(), expected)
    np.testing.assert_allclose(bars_of(ax, "bar the patched run")[-1], (65536, 0.975 / 1.375, 1.005 / 1.365))
    assert ax.get_ylabel() == "the patched run\nover the figure (×)"
    assert {"0.92×", "0.72×", "as fast as published"} <= {text.get_text() for text in ax.texts}
    low, high = ax.get_ylim()
    assert low < 0.70 and high > 1  # published speed is in view, so that a share is not read as the whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "published prefill ratios has no rows"),
        (lambda f: f.drop(columns="low"), "published prefill ratios lacks column 'low'"),
        (lambda f: f.to_dict("records"), "published prefill ratios is a list"),
        (lambda f: f.assign(load_kind="concurrency"), "has load_kind 'concurrency'; 'step_tokens' is needed"),
        (lambda f: f.assign(model=["a", "b"] * 5), "published prefill ratios mixes model 'a', 'b'"),
        (lambda f: f.assign(who=["a", "b"] * 5), "mixes who"),
        (lambda f: f.assign(metric=["a", "b"] * 5), "mixes metric"),
        (lambda f: f.assign(ratio=np.nan), "has nan in column 'ratio'; a positive number is needed"),
        (lambda f: f.assign(low=0.0), "has 0.0 in column 'low'"),
        (lambda f: f.assign(high=np.inf), "has inf in column 'high'"),
        (lambda f: f.assign(load=-1.0), "has -1.0 in column 'load'"),
        (lambda f: f.assign(ratio=2.0), "has 2.0 outside of its interval from 1.155 to 1.165"),
        (lambda f: f.assign(load=4096.0), "more than once at load 4096"),
    ],
)
def test_wrong_frames_of_prefill_are_refused_in_one_line(change, message):
    with pytest.raises(UserError, match=message) as caught:
        prefill_over_baselines(change(PREFILL), axes())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "published decode ratios has no rows"),
        (lambda f: f.drop(columns="against"), "published decode ratios lacks column 'against'"),
        (lambda f: f[f["metric"] == "decode speed"], "has the metrics decode speed; exactly two"),
        (lambda f: f.iloc[:-1], "output throughput per GPU and decode speed at different loads"),
        (lambda f: f.assign(against=["a", "b"] * 6), "mixes against"),
        (lambda f: f.assign(high=0.5), "outside of its interval"),
        (lambda f: f.assign(load=0.0), "has 0.0 in column 'load'"),
    ],
)
def test_wrong_frames_of_decode_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        decode_identity(change(DECODE), axes())


def test_wrong_frames_of_a_handicap_are_refused():
    for change, message in (
        (HANDICAP.iloc[:0], "baseline handicap has no rows"),
        (PREFILL, "baseline handicap lacks column 'ratio_run'"),
        (HANDICAP.assign(load_kind=["a", "b", "a", "b", "a"]), "mixes load_kind"),
        (HANDICAP.assign(low=2.0), "outside of its interval"),
        (HANDICAP.assign(load=np.nan), "has nan in column 'load'"),
    ):
        with pytest.raises(UserError, match=message):
            baseline_handicap_curve(change, axes())


def test_every_published_multiplier_is_a_dot_or_a_range():
    ax = framing_plot(FRAMED, axes())
    places = []
    for index, row in FRAMED.iterrows():
        line = drawn(ax, f"multiplier {index}")
        ends = sorted({value for value in (row["lowest"], row["highest"]) if not np.isnan(value)})
        assert list(line.get_xdata()) == ends
        assert line.get_markerfacecolor() == ax.get_facecolor()
        places.append(line.get_ydata()[0])
    assert places == sorted(places) and len(set(places)) == len(FRAMED) == 22
    assert ax.get_ylim()[0] > places[-1] and ax.get_ylim()[1] == 0  # from the top


def test_framings_are_headings_and_unlike_models_are_set_apart():
    ax = framing_plot(FRAMED, axes())
    headings = [text.get_text() for text in ax.texts if (text.get_gid() or "").startswith("heading")]
    assert headings == list(FRAMINGS.values())
    blocks = FRAMED.groupby("framing", sort=False)["model"].nunique()
    bands = [patch for patch in ax.patches if patch.get_gid() == "band"]
    assert len(bands) == blocks.sum() == 15
    unlike = [text for text in ax.texts if text.get_gid() == "unlike"]
    assert {text.get_text() for text in unlike} == {"≠"} and len(unlike) == (blocks - 1).sum() == 10
    assert "another model, not comparable" in texts(ax)
    tops = sorted(patch.get_bbox().y0 for patch in bands)
    first = [drawn(ax, f"multiplier {index}").get_ydata()[0] for index in (0, 4, 8, 10)]
    assert all(top < y < top + 1 for top, y in zip(tops, first))


def test_the_words_of_a_row_say_who_against_metric_model_and_precision():
    with light():
        ax = framing_plot(FRAMED, axes())
    words = {text.get_gid(): text.get_text() for text in ax.texts if (text.get_gid() or "").startswith("words")}
    assert words["words 4"] == (
        "Backboard over vLLM 0.31 (better of two configurations)  ·  median decode speed  ·  Qwen3.8-Flash-Next, BF16"
    )
    assert words["words 21"].startswith("Dynamo with SGLang over itself, five days before  ·  multiple annotated on")
    assert "…" in words["words 21"] and words["words 21"].endswith("Qwen3.8 Flash Next 176B")
    assert {"1.14×–1.37×", "21% more", "1.1×–2.2×", "1.59×–12.9×"} <= {text.get_text() for text in ax.texts}
    less = framing_plot(FRAMED.iloc[:1].assign(lowest=0.62, highest=0.62, printed="38%", model=""), axes())
    assert "38% less" in texts(less) and "model unstated" in texts(less)


def test_an_upper_end_alone_is_marked_as_one():
    ax = framing_plot(FRAMED, axes())
    (alone,) = FRAMED.index[FRAMED["lowest"].isna()]
    assert "up to 34% more" in texts(ax)
    tail = drawn(ax, f"open {alone}")
    assert tail.get_linestyle() == ":" and max(tail.get_xdata()) == FRAMED["highest"][alone] == 1.34
    assert [line.get_gid() for line in ax.lines if (line.get_gid() or "").startswith("open")] == [f"open {alone}"]


def test_a_lone_axes_grows_with_its_rows_and_one_of_several_does_not():
    one, many = axes(), axes()
    framing_plot(FRAMED.iloc[:1], one)
    framing_plot(FRAMED, many)
    assert many.figure.get_size_inches()[1] > one.figure.get_size_inches()[1] + 5
    assert many.figure.get_size_inches()[0] == one.figure.get_size_inches()[0]
    left, _ = Figure().subplots(1, 2)
    before = tuple(left.figure.get_size_inches())
    framing_plot(FRAMED, left)
    assert tuple(left.figure.get_size_inches()) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "published framings has no rows"),
        (lambda f: f.drop(columns="printed"), "published framings lacks column 'printed'"),
        (lambda f: f.assign(framing="fastest"), "has the framing 'fastest'; it must be one of direct"),
        (lambda f: f.assign(highest=np.nan), "has nan in column 'highest'"),
        (lambda f: f.assign(lowest=99.0), "outside of its interval"),
        (lambda f: pd.concat([f, f.iloc[:1]]), "rows of one framing apart"),
    ],
)
def test_wrong_frames_of_framings_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        framing_plot(change(FRAMED), axes())


def test_headline_framings_keep_throughput_and_speed_with_one_model_together():
    assert list(dict.fromkeys(FRAMED["framing"])) == list(FRAMINGS)
    for column in ("TTFT", "completion", "requests in flight"):
        assert not FRAMED["metric"].str.contains(column).any()
    pairs = list(zip(FRAMED["framing"], FRAMED["model"]))
    runs = [pair for pair, before in zip(pairs, [None, *pairs]) if pair != before]
    assert len(runs) == len(set(pairs))


def test_occupancy_rows_follow_from_the_printed_digits():
    expected = [2095 / (128 * 41.9), 1731 / (128 * 16.8), 2149 / (128 * 41.8), 1764 / (128 * 16.7)]
    np.testing.assert_allclose(SIDES["occupancy"], expected)
    assert SIDES["occupancy"].round(2).tolist() == [0.39, 0.80, 0.40, 0.83]
    assert SIDES["low"].iloc[0] == pytest.approx(2094.5 / (128 * 41.95))
    assert SIDES["high"].iloc[0] == pytest.approx(2095.5 / (128 * 41.85))
    assert SIDES["precision"].tolist() == ["BF16", "BF16", "FP8", "FP8"]
    assert SIDES["composite"].tolist() == [False, True, False, True]
    with pytest.raises(UserError, match="no claim asks for the check 'occupancy'"):
        occupancy_rows(Published(PUBLISHED.documents, PUBLISHED.numbers, ()))


def test_occupancy_draws_throughput_and_product_of_every_side():
    ax = occupancy_plot(SIDES, axes())
    for y, row in enumerate(SIDES.itertuples()):
        assert (drawn(ax, f"throughput {y}").get_xdata()[0], drawn(ax, f"product {y}").get_xdata()[0]) == (
            row.throughput,
            row.product,
        )
        assert drawn(ax, f"throughput {y}").get_ydata()[0] == y
    assert ax.get_xlim()[0] == 0  # lengths are read as shares
    assert "0.39 [0.39, 0.40]" in {text.get_text() for text in ax.texts}
    assert {"0.83 [0.82, 0.83], composite", "128 × 41.9 = 5,363", "2,095"} <= {text.get_text() for text in ax.texts}
    assert "may come from two configurations" in texts(ax)
    outwards = occupancy_plot(SIDES.iloc[:1].assign(low=0.3861, high=0.3941), axes())
    assert "0.39 [0.38, 0.40]" in {text.get_text() for text in outwards.texts}
    assert ax.get_yticklabels()[1].get_text() == "vLLM 0.31 (better of\ntwo configurations)\nBF16"
    alone = occupancy_plot(SIDES.assign(composite=False, precision=""), axes())
    assert "configurations" not in texts(alone) and alone.get_yticklabels()[0].get_text() == "Backboard"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "published occupancy has no rows"),
        (lambda f: f.drop(columns="product"), "published occupancy lacks column 'product'"),
        (lambda f: f.assign(throughput=0.0), "has 0.0 in column 'throughput'"),
        (lambda f: f.assign(speed="fast"), "has 'fast' in column 'speed'"),
        (lambda f: f.assign(occupancy=0.1), "outside of its interval"),
    ],
)
def test_wrong_frames_of_occupancy_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        occupancy_plot(change(SIDES), axes())


def test_verdicts_are_counted_by_document_and_drawn_as_stacked_bars():
    found = audit(PUBLISHED)
    assert COUNTS.groupby("verdict")["claims"].sum().to_dict() == found.counts
    assert COUNTS["claims"].sum() == len(found.claims)
    ax = verdict_plot(COUNTS, axes())
    widths = {patch.get_gid(): (patch.get_x(), patch.get_width()) for patch in ax.patches if patch.get_gid()}
    for y, (_, rows) in enumerate(COUNTS.groupby("document", sort=False)):
        left = 0
        for row in rows.itertuples():
            assert widths.pop(f"{row.verdict} {y}", (left, 0)) == (left, row.claims)
            left += row.claims
    assert not widths
    names = {"confirmed", "consistent\nwithin rounding", "cannot be checked", "contradicted"}
    assert names <= {text.get_text() for text in ax.texts}
    assert "says nothing about the measurement" in texts(ax)
    assert ax.get_yticklabels()[3].get_text().replace("\n", " ") == (
        "The problem with headline multipliers (Backboard, article)"
    )


def test_a_verdict_that_no_claim_has_is_not_named():
    fine = verdict_plot(COUNTS[COUNTS["verdict"] == "confirmed"], axes())
    assert "contradicted" not in texts(fine) and "confirmed" in {text.get_text() for text in fine.texts}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "the frame of verdicts has no rows"),
        (lambda f: f.drop(columns="label"), "the frame of verdicts lacks column 'label'"),
        (lambda f: f.assign(verdict="true"), "has the verdict 'true'; it must be one of confirmed"),
        (lambda f: f.assign(claims=-1), "has -1 in column 'claims'"),
        (lambda f: f.assign(claims=np.nan), "has nan in column 'claims'"),
    ],
)
def test_wrong_frames_of_verdicts_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        verdict_plot(change(COUNTS), axes())


@pytest.mark.parametrize("theme", [light, dark])
def test_no_two_labels_overlap_in_either_theme(theme):
    for figure in published_figures(PUBLISHED):
        with theme():
            ax = axes()
            figure.make(ax)
            boxes = list(label_boxes(ax).items())
        for index, (text, a) in enumerate(boxes):
            for other, b in boxes[index + 1 :]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, f"{figure.name}: {text} on {other}"


def test_all_figures_are_saved_with_source_alt_text_and_data_hash(tmp_path):
    paths = save_published_figures(tmp_path)
    names = [
        "published_prefill_baselines", "published_decode_identity", "published_baseline_handicap",
        "published_framings", "published_occupancy", "published_verdicts",
    ]  # fmt: skip
    others = [
        "one_server_four_tools", "kernel_roofline", "tokens_per_dollar_vs_latency", "dollars_per_million_vs_latency"
    ]  # fmt: skip
    assert [path.name for path in paths] == [f"{name}.png" for name in (*names, *others)]
    assert len(list(tmp_path.iterdir())) == 4 * len(names + others)
    sidecars = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    figures = {figure.name: figure for figure in published_figures(PUBLISHED)}
    for name, sidecar in sidecars.items():
        assert sidecar["data_sha256"] == data_sha256(figures[name].data)
        assert sidecar["source"].startswith("Printed digits of “") and "nothing was run" in sidecar["source"]
    assert "measured on 7 November 2026" in sidecars["published_decode_identity"]["source"]
    assert "1.37× at 65,536" in sidecars["published_prefill_baselines"]["alt"]
    assert "vLLM 0.31 (better of two configurations) BF16 0.80" in sidecars["published_occupancy"]["alt"]
    assert "(Backboard, article): 13 confirmed" in sidecars["published_verdicts"]["alt"]
    assert not plt.get_fignums()


def test_a_palette_makes_a_figure_small_and_keeps_its_colours():
    from PIL import Image

    ax = prefill_over_baselines(PREFILL, axes())
    whole = io.BytesIO()
    ax.figure.savefig(whole, format="png", dpi=ax.figure.dpi, bbox_inches="tight")
    packed = palette_png(ax.figure)
    assert len(packed) < 0.5 * len(whole.getvalue())
    before, after = (
        np.array(Image.open(io.BytesIO(png)).convert("RGB")).astype(int) for png in (whole.getvalue(), packed)
    )
    assert before.shape == after.shape and np.abs(before - after).max() <= 16
    assert len(np.unique(after.reshape(-1, 3), axis=0)) <= 128


def test_outside_of_a_notebook_the_palette_changes_nothing():
    before = plt.get_backend()
    inline_with_palette()
    assert plt.get_backend() == before

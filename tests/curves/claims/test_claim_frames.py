"""Tidy frames of published numbers, as figures take them."""

import pytest
from claim_builders import PUBLISHED, at_loads, number

from wholecurve.curves.claims import baseline_handicap, framing_table, published_ratios
from wholecurve.curves.claims.nouns import Document, Published
from wholecurve.errors import UserError
from wholecurve.readers.published import read_claims


@pytest.fixture(scope="module")
def published():
    return read_claims(PUBLISHED)


def book(*numbers):
    return Published({"text": Document("text")}, {n.id: n for n in numbers}, ())


def test_ratios_over_load(published):
    frame = published_ratios(published, "backboard-deepinfer")
    decode = frame[frame["metric"] == "output throughput per GPU"]
    assert decode["load_kind"].unique().tolist() == ["requests_per_gpu"]
    assert decode["load"].tolist() == [8, 16, 32, 64, 128, 256]
    assert decode["ratio"].tolist() == [1.12, 1.11, 1.10, 1.10, 1.11, 1.09]
    prefill = frame[frame["load_kind"] == "step_tokens"]
    by_baseline = {name: rows["ratio"].tolist() for name, rows in prefill.groupby("against")}
    assert by_baseline == {
        "DeepInfer (own patched run)": [1.16, 1.14, 1.14, 1.21, 1.37],
        "DeepInfer (published figure)": [1.07, 1.05, 1.02, 1.00, 0.99],
    }
    last = prefill.iloc[-1]
    assert (last["low"], last["high"], last["approximate"], last["n"]) == (0.975, 1.005, True, "1 / unstated")


def test_percentages_become_ratios_and_repeats_are_left_out(published):
    frame = published_ratios(published).set_index("id")
    assert frame.loc["vllm-bf16-throughput", "ratio"] == 1.21
    assert frame.loc["vllm-bf16-completion", "ratio"] == 0.62
    assert not [name for name in frame.index if "@" in name]
    assert frame.loc["together-k3", ["load_kind", "load", "ratio"]].tolist() == ["speed", 127, 2.7]


def test_framings_side_by_side(published):
    frame = framing_table(published, "headline-multipliers").set_index(["who", "framing", "metric"])
    ours = frame.loc["Backboard"]
    assert ours.loc[("same throughput", "decode speed"), ["lowest", "highest"]].tolist() == [1.75, 3.95]
    assert ours.loc[("same speed", "output throughput"), ["lowest", "highest"]].tolist() == [2.17, 3.41]
    assert ours.loc[("direct", "output throughput and decode speed"), ["lowest", "highest"]].tolist() == [1.66, 2.18]
    assert len(frame.loc["Together Compiler"]) == 4
    own = frame.loc["Dynamo with SGLang"].iloc[0]
    assert (own["lowest"], own["highest"], own["printed"]) == (1.59, 12.9, "1.59×–12.9×")


def test_an_upper_end_alone_has_no_lowest():
    alone = framing_table(book(number("2.2×", framing="direct", bound="up to")))
    assert alone["lowest"].isna().all() and alone["highest"].tolist() == [2.2]
    both = framing_table(
        book(number("1.1×", framing="direct", bound="range low"), number("2.2×", framing="direct", bound="range high"))
    )
    assert both[["lowest", "highest", "printed"]].values.tolist() == [[1.1, 2.2, "1.1×–2.2×"]]


def test_settings_and_costs_are_no_comparison():
    frame = framing_table(book(number("128", "requests", framing="setting"), number("0.73×", framing="cost")))
    assert frame.empty and "highest" in frame
    assert published_ratios(book(number("2×", framing="direct"))).empty


def test_handicap_at_every_step(published):
    frame = baseline_handicap(published, "DeepInfer (own patched run)", "DeepInfer (published figure)")
    assert frame["load"].tolist() == [4096, 8192, 16384, 32768, 65536]
    expected = [1.07 / 1.16, 1.05 / 1.14, 1.02 / 1.14, 1.00 / 1.21, 0.99 / 1.37]
    assert frame["baseline_run_over_published"].tolist() == pytest.approx(expected)
    assert frame["low"].iloc[-1] == pytest.approx(0.975 / 1.375)
    assert frame["high"].iloc[-1] == pytest.approx(1.005 / 1.365)


def test_what_is_not_there_is_named(published):
    with pytest.raises(UserError, match="there is no document 'x'"):
        published_ratios(published, "x")
    with pytest.raises(UserError, match="no multiplier at a load is against 'x'"):
        baseline_handicap(published, "x", "DeepInfer (published figure)")
    run = at_loads(("1.1×", "1.2×"), (8, 16), framing="direct", against="run")
    other = at_loads(("1.0×", "1.3×"), (8, 32), framing="direct", against="published")
    with pytest.raises(UserError, match="same loads"):
        baseline_handicap(book(*run, *other), "run", "published")

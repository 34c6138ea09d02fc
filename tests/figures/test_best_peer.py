"""The composite table of a race: the best other contender at each load, chosen by median, paired by repeat."""

import math

import pandas as pd
import pytest

from wholecurve.figures.best_peer import best_peer_table


def point(contender, load, repeat, throughput, workload="batch"):
    column = "input_throughput_tok_per_s" if workload == "prefill" else "output_throughput_tok_per_s"
    return {"contender": contender, "workload": workload, "load": load, "repeat": repeat, column: throughput}


def points(rows):
    frame = pd.DataFrame(rows)
    for column in ("input_throughput_tok_per_s", "output_throughput_tok_per_s"):
        if column not in frame:
            frame[column] = float("nan")
    return frame


RACE = [
    *(point("mine", 1, r, 100.0 + r) for r in (1, 2, 3)),
    *(point("slow", 1, r, 50.0) for r in (1, 2, 3)),
    *(point("fast", 1, r, v) for r, v in ((1, 80.0), (2, 120.0), (3, 82.0))),
    *(point("again", 1, r, 500.0) for r in (1, 2, 3)),
    *(point("mine", 8, r, 300.0) for r in (1, 2)),
    *(point("slow", 8, r, 200.0) for r in (1, 2)),
    *(point("fast", 8, r, 150.0) for r in (1, 2)),
    point("mine", 128, 1, 1000.0, "prefill"),
    point("slow", 128, 1, 1100.0, "prefill"),
]


def test_the_best_peer_is_the_one_with_the_best_median_and_no_control():
    table = best_peer_table(points(RACE), "mine", ["again"])
    assert list(table["best peer here"]) == ["fast", "slow", "slow"]
    assert list(table["ratio"]) == ["1.24×", "1.50×", "0.91×"]  # 102/82, 300/200, 1000/1100
    assert list(table["repeats above 1"]) == ["2 of 3", "2 of 2", "0 of 1"]
    assert list(table["workload"]) == ["batch", "batch", "prefill"] and list(table["load"]) == [1, 8, 128]


def test_the_interval_pairs_repeats():
    table = best_peer_table(points(RACE), "mine", ["again"])
    logs = [math.log(101 / 80), math.log(102 / 120), math.log(103 / 82)]
    mean = sum(logs) / 3
    half = 4.302652729749464 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2) / math.sqrt(3)
    low, high = (float(x) for x in table["95% interval"][0].split("–"))
    assert (low, high) == pytest.approx((102 / 82 * math.exp(-half), 102 / 82 * math.exp(half)), abs=0.006)
    assert table["95% interval"][1] == "n < 3"


def test_a_load_that_only_one_side_has_is_left_out():
    assert best_peer_table(points([point("mine", 1, 1, 5.0)]), "mine").empty
    assert best_peer_table(points([point("slow", 1, 1, 5.0)]), "mine").empty

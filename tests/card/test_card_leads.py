"""Who leads where: better is above 1 whichever way a metric runs, noise bounds it, and what is unknown is said."""

import pandas as pd
import pytest

from wholecurve.card.leads import Metric, leads_of
from wholecurve.curves.multipliers import AHEAD_A, AHEAD_B, NO_DIFFERENCE, NOT_MEASURED, UNDECIDED

FASTER = Metric("output_throughput_tok_per_s", "output throughput")
SOONER = Metric("ttft_p50_ms", "TTFT p50", lower=True)


def rows(metric, load, **values):
    """Points of one load: each contender's value in three repeats that differ by a percent, or one per repeat."""
    found = []
    for name, given in values.items():
        repeats = given if isinstance(given, list) else [given, 1.01 * given, 0.99 * given]
        found += [
            {"contender": name, "load": load, "repeat": i, metric.column: value} for i, value in enumerate(repeats, 1)
        ]
    return pd.DataFrame(found)


def only(points, metric, controls=None, peers=("b", "c")):
    (lead,) = leads_of(points, metric, "a", peers, controls or {})
    return lead


def test_more_throughput_and_less_waiting_are_both_above_one():
    throughput = only(rows(FASTER, 4, a=120.0, b=100.0, c=80.0), FASTER)
    assert (throughput.other, throughput.says) == ("b", AHEAD_A)
    assert throughput.ratio == pytest.approx(1.2) and throughput.low < 1.2 < throughput.high * (1 + 1e-9)
    waiting = only(rows(SOONER, 4, a=120.0, b=100.0, c=80.0), SOONER)
    assert (waiting.other, waiting.says) == ("c", AHEAD_B)
    assert waiting.ratio == pytest.approx(80 / 120)


def test_the_interval_is_over_paired_repeats():
    # Both were slow in the third repeat: their ratio is the same in all, so nothing is uncertain.
    together = only(rows(FASTER, 4, a=[120.0, 121.0, 60.0], b=[100.0, 121 / 1.2, 50.0]), FASTER)
    assert together.low == pytest.approx(1.2) and together.high == pytest.approx(1.2)
    apart = only(rows(FASTER, 4, a=[120.0, 121.0, 60.0], b=[100.0, 50.0, 121 / 1.2]), FASTER)
    assert apart.says == NO_DIFFERENCE and apart.low < 1 < apart.high


def test_what_lies_within_the_control_at_any_load_is_no_difference():
    points = pd.concat([rows(FASTER, 1, a=100.0, again=110.0, b=50.0), rows(FASTER, 4, a=105.0, again=105.0, b=100.0)])
    loud, quiet = leads_of(points, FASTER, "a", ["b"], {"again": "a"})
    assert loud.says == AHEAD_A and quiet.says == NO_DIFFERENCE
    without = leads_of(points, FASTER, "a", ["b"], {})
    assert [lead.says for lead in without] == [AHEAD_A, AHEAD_A]
    of_another = leads_of(points, FASTER, "a", ["b"], {"again": "b"})
    assert of_another[1].says == AHEAD_A


def test_two_repeats_decide_nothing_and_a_missing_side_is_not_measured():
    assert only(rows(FASTER, 4, a=[120.0, 121.0], b=[100.0, 101.0]), FASTER).says == UNDECIDED
    assert only(rows(FASTER, 4, b=100.0), FASTER).says == NOT_MEASURED
    assert only(rows(FASTER, 4, a=100.0), FASTER).says == NOT_MEASURED
    unprinted = rows(SOONER, 4, a=[None, None, None], b=100.0)
    assert only(unprinted, SOONER).says == NOT_MEASURED


def test_controls_are_no_others():
    lead = only(rows(FASTER, 4, a=100.0, again=300.0, b=90.0), FASTER, {"again": "a"})
    assert lead.other == "b"

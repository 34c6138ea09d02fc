"""The search for the maximum load: right for every threshold, within its budget, and the same when it is told again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholecurve.studies.serving.plan_parts import MaximumLoadPlan
from wholecurve.studies.serving.search import Bisection


def run(plan, keeps):
    search = Bisection(plan)
    while (load := search.next_load()) is not None:
        search.record(load, keeps(load))
    return search


@given(low=st.integers(1, 50), width=st.integers(1, 500), most=st.integers(0, 600))
def test_the_largest_concurrency_that_keeps_the_objectives_is_found(low, width, most):
    plan = MaximumLoadPlan(by="concurrency", low=low, high=low + width, steps=30)
    result = run(plan, lambda load: load <= most).result()
    if most < low:
        assert (result["met_at"], result["missed_at"]) == (None, low)
    elif most >= low + width:
        assert (result["met_at"], result["missed_at"]) == (low + width, None)
    else:
        assert (result["met_at"], result["missed_at"]) == (most, most + 1), "neighbours: nothing is left between them"
    assert all(probe["load"] == int(probe["load"]) for probe in result["probes"])


@given(most=st.floats(0.6, 90), tolerance=st.floats(0.005, 0.5))
def test_a_rate_is_found_within_its_tolerance(most, tolerance):
    plan = MaximumLoadPlan(by="rate", low=0.5, high=100, steps=60, tolerance=tolerance)
    result = run(plan, lambda load: load <= most).result()
    assert result["met_at"] <= most < result["missed_at"]
    assert result["missed_at"] / result["met_at"] <= 1 + tolerance


@given(steps=st.integers(2, 12), most=st.integers(1, 1000))
def test_no_more_loads_are_probed_than_the_plan_allows_and_none_twice(steps, most):
    plan = MaximumLoadPlan(by="concurrency", low=1, high=1000, steps=steps)
    loads = [load for load, _ in run(plan, lambda load: load <= most).probes]
    assert len(loads) <= steps and len(set(loads)) == len(loads)


def test_a_search_that_is_told_its_probes_again_asks_for_the_same_next_one():
    plan = MaximumLoadPlan(by="rate", low=1, high=64, steps=9)
    whole = run(plan, lambda load: load <= 11)
    for done in range(len(whole.probes)):
        again = Bisection(plan)
        for expected, met in whole.probes[:done]:
            assert again.next_load() == expected
            again.record(expected, met)
        assert again.next_load() == whole.probes[done][0]


def test_both_ends_are_measured_before_anything_between_them():
    search = run(MaximumLoadPlan(by="concurrency", low=2, high=32), lambda load: load <= 9)
    assert [load for load, _ in search.probes[:2]] == [2, 32]


@pytest.mark.parametrize(
    ("most", "says"),
    [
        (0, "not kept at 4 in flight, the lowest load of the plan"),
        (99, "kept at 16 in flight, the highest load of the plan; the maximum is not lower"),
        (9, "kept at 9, not at 10 in flight"),
    ],
)
def test_the_answer_is_one_sentence_that_claims_no_more_than_was_probed(most, says):
    plan = MaximumLoadPlan(by="concurrency", low=4, high=16)
    assert run(plan, lambda load: load <= most).result()["says"] == says


def test_a_contradiction_never_moves_the_answer_above_a_load_that_was_missed():
    search = Bisection(MaximumLoadPlan(by="concurrency", low=1, high=64))
    for load, met in ((1, True), (64, False), (32, False), (40, True)):
        search.record(load, met)
    assert (search.result()["met_at"], search.result()["missed_at"]) == (1, 32)

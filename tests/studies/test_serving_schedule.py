"""The order of a serving study: there and back again, shuffled levels, one file name for each point."""

from itertools import pairwise

import pytest

from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.schedule import SEARCH_WORKLOAD, ServingPoint, schedule

NAMES = ["a", "b", "c"]


def make_plan(**changes):
    document = {
        "name": "p", "kind": "serving", "model": "m", "dtype": "bfloat16", "repeats": 4, "seed": 5,
        "contenders": [{"name": name, "server": "wholecurve"} for name in NAMES],
        "workload": {"kind": "lengths", "prompt_tokens": [4, 8], "output_tokens": [2, 4]},
        "load": {"closed": {"concurrency": [1, 2, 4, 8]}},
    }  # fmt: skip
    return ServingPlan.model_validate({**document, **changes})


def test_every_point_is_there_once_and_orders_count_through():
    points = schedule(make_plan(), NAMES)
    assert [point.order for point in points] == list(range(4 * 4 * 3))
    assert len({(p.contender, p.load, p.repeat) for p in points}) == len({p.point_id for p in points}) == len(points)


def test_contenders_run_there_and_back_again_and_the_next_repeat_begins_the_other_way():
    points = schedule(make_plan(), NAMES)
    for repeat in range(1, 5):
        mine = [p.contender for p in points if p.repeat == repeat]
        rounds = [mine[i : i + 3] for i in range(0, len(mine), 3)]
        assert all(later == earlier[::-1] for earlier, later in pairwise(rounds))
    firsts = [next(p.contender for p in points if p.repeat == repeat) for repeat in range(1, 5)]
    assert firsts[0] != firsts[1] and firsts[0] == firsts[2]


def test_levels_are_shuffled_by_the_seed_and_alike_for_all_contenders():
    orders = [[p.load for p in schedule(make_plan(), NAMES) if p.repeat == r and p.contender == "b"] for r in (1, 2, 3)]
    assert all(sorted(order) == [1, 2, 4, 8] for order in orders) and len(set(map(tuple, orders))) > 1
    assert schedule(make_plan(), NAMES) == schedule(make_plan(), NAMES) != schedule(make_plan(seed=6), NAMES)


def test_servers_one_at_a_time_measure_whole_curves_and_every_other_repeat_runs_backwards():
    points = schedule(make_plan(servers="one at a time"), NAMES)
    for repeat, order in ((1, NAMES), (2, NAMES[::-1]), (3, NAMES)):
        mine = [p.contender for p in points if p.repeat == repeat]
        assert mine == [name for name in order for _ in range(4)]


@pytest.mark.parametrize(
    ("kind", "load", "point_id"),
    [
        ("concurrency", 16, "serving-our-engine-00016-r2"),
        ("request_rate", 16, "serving-our-engine-00016-per-s-r2"),
        ("request_rate", 0.25, "serving-our-engine-0.25-per-s-r2"),
    ],
)
def test_a_points_file_says_what_it_is(kind, load, point_id):
    assert ServingPoint(0, "Our engine", "serving", kind, load, 2).point_id == point_id


def test_probes_of_the_search_never_send_the_prompts_of_the_race():
    race = ServingPoint(0, "a", "serving", "concurrency", 4, 1)
    probe = ServingPoint(0, "a", SEARCH_WORKLOAD, "concurrency", 4, 1)
    assert race.prompts_of == 1 and probe.prompts_of != race.prompts_of and probe.point_id != race.point_id

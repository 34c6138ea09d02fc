"""Order of measurement: complete, shuffled, contenders there and back; requests: from the seed alone."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wholecurve.studies.plan import DecodePlan, Plan, PrefillPlan
from wholecurve.studies.protocol import schedule
from wholecurve.studies.workloads import decode_requests, prefill_requests, warm_up_requests


def make_plan(contenders=3, repeats=3, levels=(1, 2, 4, 8), steps=(128, 256), seed=0):
    names = [{"name": f"c{i}", "engine": "wholecurve"} for i in range(contenders)]
    decode = {"concurrency": list(levels), "prompt_tokens": [4, 8], "output_tokens": [4, 8]}
    return Plan(
        name="p", model="m", seed=seed, repeats=repeats, contenders=names, decode=decode,
        prefill={"step_tokens": list(steps)},
    )  # fmt: skip


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10))
def test_every_point_exactly_once(contenders, repeats, seed):
    plan = make_plan(contenders, repeats, seed=seed)
    points = schedule(plan)
    assert len(points) == contenders * repeats * 6
    assert len({p.point_id for p in points}) == len(points)
    assert [p.order for p in points] == list(range(len(points)))
    assert [p.repeat for p in points] == sorted(p.repeat for p in points)


def test_contenders_run_there_and_back():
    plan = make_plan(contenders=2, repeats=2)
    points = schedule(plan)
    groups = [tuple(p.contender for p in points[i : i + 2]) for i in range(0, len(points), 2)]
    first, second = groups[:6], groups[6:]
    assert all(a == b[::-1] for a, b in pairwise(first))
    assert first[0] == second[0][::-1]
    assert Counter(groups) == {("c0", "c1"): 6, ("c1", "c0"): 6}


def test_levels_are_shuffled_differently_in_each_repeat():
    plan = make_plan(contenders=1, repeats=4, levels=(1, 2, 4, 8, 16, 32))
    points = schedule(plan)
    orders = [[(p.workload, p.load) for p in points if p.repeat == r] for r in range(1, 5)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert schedule(plan) == points


def test_requests_depend_on_seed_level_and_repeat_alone():
    plan = DecodePlan(concurrency=[4], requests_per_slot=3, prompt_tokens=[5, 9], output_tokens=[2, 6])
    requests = decode_requests(plan, 1, 4, 1, 1000)
    assert requests == decode_requests(plan, 1, 4, 1, 1000)
    assert len(requests) == 12
    assert {5 <= len(r.prompt_ids) <= 9 and 2 <= r.output_tokens <= 6 for r in requests} == {True}
    assert len({len(r.prompt_ids) for r in requests}) > 1, "lengths must be jittered, or the closed loop locks step"
    prompts = [tuple(r.prompt_ids) for r in requests]
    for other in (decode_requests(plan, 2, 4, 1, 1000), decode_requests(plan, 1, 8, 1, 1000),
                  decode_requests(plan, 1, 4, 2, 1000), warm_up_requests(4, 9, 1, 1000)):  # fmt: skip
        prompts += [tuple(r.prompt_ids) for r in other]
    assert len(set(prompts)) == len(prompts), "no prompt may come twice: the second would hit a prefix cache"


def test_prefill_requests_have_exactly_the_step_size():
    requests = prefill_requests(PrefillPlan(step_tokens=[64], requests=3), 1, 64, 1, 1000)
    assert [len(r.prompt_ids) for r in requests] == [64, 64, 64]
    assert {r.output_tokens for r in requests} == {1}
    assert all(0 <= token < 1000 for r in requests for token in r.prompt_ids)

"""Plans of a race: settings per engine, batches, tuning; and older plans keep their hash."""

import re
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.contenders.options import OPTIONS, parse_options
from wholecurve.studies.plan import Plan, read_plan
from wholecurve.studies.plan_parts import BatchPlan
from wholecurve.studies.protocol import schedule
from wholecurve.studies.workloads import batch_requests

ROOT = Path(__file__).parents[2]
RECORDED_QUICK = "308ea93c5d23854a4ef396a5555c0d375583a46d930ebea8f2ac4da6362cbaa8"


@pytest.fixture
def race(plan_document):
    """The tiny plan with a batch and tuning."""
    del plan_document["decode"]
    plan_document["batch"] = {"concurrency": [1, 4], "prompt_tokens": 8, "output_tokens": 6, "min_requests": 3}
    plan_document["tuning"] = {
        "concurrency": [4], "step_tokens": [16], "budget": 3, "candidates": {"ours": [{"block_size": 32}]},
    }  # fmt: skip
    return plan_document


def refused(document, write_plan):
    path = write_plan(document)
    with pytest.raises(UserError) as caught:
        read_plan(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{path}: ")
    return text


@pytest.mark.parametrize("engine", OPTIONS)
def test_unknown_settings_are_named_with_those_that_there_are(plan_document, write_plan, engine):
    plan_document["contenders"][0] = {"name": "peer", "engine": engine, "settings": {"thraeds": 2}}
    plan_document["contenders"].pop()
    text = refused(plan_document, write_plan)
    assert f"unknown setting 'thraeds' of engine {engine}; there is: threads" in text


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        ("vllm", {"compile": "yes"}, "setting 'compile' of engine vllm is 'yes'"),
        ("llama.cpp", {"ubatch_tokens": 0}, "setting 'ubatch_tokens' of engine llama.cpp is 0"),
        ("wholecurve", {"threads": "many"}, "setting 'threads' of engine wholecurve is 'many'"),
        ("openvino", {"split_fuse": 7}, "setting 'split_fuse' of engine openvino is 7"),
    ],
)
def test_wrong_values_of_settings_are_named(engine, settings, message):
    with pytest.raises(ValueError, match=message):
        parse_options(engine, settings)


def test_settings_enter_the_hash_and_their_absence_does_not(plan_document, write_plan):
    plain = read_plan(write_plan(plan_document)).document()
    assert "batch" not in plain["plan"] and "settings" not in plain["plan"]["contenders"][0]
    plan_document["contenders"][0]["settings"] = {"block_size": 32}
    assert read_plan(write_plan(plan_document)).document()["plan_hash"] != plain["plan_hash"]


def test_the_newcomers_plan_still_has_the_hash_of_its_recorded_run(write_plan):
    document = (ROOT / "plans" / "quick.yaml").read_text(encoding="utf-8").replace("dtype: auto", "dtype: bfloat16")
    plan = write_plan({}, "quick.yaml")
    plan.write_text(document, encoding="utf-8")
    assert read_plan(plan).document()["plan_hash"] == RECORDED_QUICK


def test_a_recorded_plan_is_read_back_as_it_was_written(race, write_plan):
    plan = read_plan(write_plan(race))
    stored = plan.document()
    assert Plan.model_validate(stored["plan"]).document() == stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": {"output_tokens": 1}}, "batch.output_tokens: .*greater than or equal to 2"),
        ({"batch": {"concurrency": [4, 4]}}, "batch.concurrency: a load level is listed twice"),
        ({"batch": {"prompt_tokens": 32}}, "batch.output_tokens: 6 is too few: .* take 4 steps, so more than 8"),
        ({"tuning": {"concurrency": [8]}}, r"tuning\.concurrency: 8 is above the race's largest level 4"),
        ({"tuning": {"step_tokens": [64]}}, r"tuning\.step_tokens: 64 is above the race's largest level 32"),
        ({"tuning": {"concurrency": [], "step_tokens": []}}, "tuning: at least one load level"),
        ({"tuning": {"candidates": {"nobody": [{}]}}}, "tuning.candidates: 'nobody' is no contender of its own"),
        ({"tuning": {"candidates": {"ours again": [{}]}}}, "'ours again' is no contender of its own; there is: ours"),
        ({"tuning": {"candidates": {"ours": [{}, {}, {}]}}}, "3 candidates and its own settings .* budget of 3"),
        ({"tuning": {"candidates": {"ours": [{"blocks": 1}]}}}, r"ours\.0: unknown setting 'blocks'"),
    ],
)  # fmt: skip
def test_a_race_that_cannot_be_run_is_refused(race, write_plan, change, message):
    for part, fields in change.items():
        race[part] |= fields
    assert re.search(message, refused(race, write_plan))


def test_tuning_needs_the_workload_that_it_measures(race, write_plan):
    del race["batch"]
    assert "tuning.concurrency: it measures batches, and the plan has no batch" in refused(race, write_plan)


def test_budgets_of_every_contender_cover_the_batches(race, write_plan):
    plan = read_plan(write_plan(race))
    assert plan.max_concurrency == 4
    assert plan.sequence_tokens >= 8 + 6
    assert plan.cache_tokens >= 4 * (8 + 6)


def test_every_batch_point_once_per_repeat(race, write_plan):
    points = [p for p in schedule(read_plan(write_plan(race))) if p.workload == "batch"]
    assert len(points) == 2 * 2 * 2  # contenders, levels, repeats
    assert len({p.point_id for p in points}) == 8
    assert points[0].point_id.startswith("batch-ours")


def test_requests_of_a_batch_point_have_one_length_and_whole_batches():
    plan = BatchPlan(concurrency=[1, 2, 4], prompt_tokens=8, output_tokens=6, min_requests=3)
    for concurrency, count in ((1, 3), (2, 4), (4, 4)):
        requests = batch_requests(plan, 1, concurrency, 1, 1000)
        assert len(requests) == count
        assert {(len(r.prompt_ids), r.output_tokens) for r in requests} == {(8, 6)}
        assert len({tuple(r.prompt_ids) for r in requests}) == count, "a repeated prompt could hit a prefix cache"
    assert batch_requests(plan, 1, 4, 1, 1000) != batch_requests(plan, 1, 4, 2, 1000)


def test_the_race_of_this_repository_is_valid():
    plan = read_plan(ROOT / "plans" / "peers_cpu.yaml")
    assert plan.batch.concurrency == [1, 2, 4, 8, 16, 32, 64] and plan.repeats == 5
    assert {contender.engine for contender in plan.contenders} == set(OPTIONS)

"""Tuning: the stated criterion decides, everything is recorded, a killed study goes on, wrong answers never win."""

import json
import math

import pytest

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies import tuning
from wholecurve.studies.plan import Plan
from wholecurve.studies.tuning import candidates_of, score, tune, winner


def make_plan(**changes):
    document = {
        "name": "p", "model": "m", "repeats": 1,
        "contenders": [
            {"name": "ours", "engine": "wholecurve", "settings": {"block_size": 16}},
            {"name": "theirs", "engine": "llama.cpp"},
            {"name": "untuned", "engine": "transformers"},
            {"name": "ours again", "engine": "wholecurve", "control_of": "ours"},
        ],
        "batch": {"concurrency": [1, 4], "prompt_tokens": 8, "output_tokens": 8},
        "prefill": {"step_tokens": [64]},
        "tuning": {
            "concurrency": [1, 4], "step_tokens": [64],
            "candidates": {"ours": [{"block_size": 32}, {"overlap": True}], "theirs": [{"ubatch_tokens": 64}]},
        },
    }  # fmt: skip
    document["tuning"] |= changes
    return Plan.model_validate(document)


class FakeSession:
    def __init__(self, bench, contender, settings):
        self.bench, self.name, self.settings = bench, contender.name, settings

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bench.open -= 1

    def generate(self, requests):
        return {}

    def measure(self, workload, load, repeat):
        self.bench.measured.append((self.name, dict(self.settings), workload, load, repeat))
        column = tuning._THROUGHPUT[workload]
        return {column: self.bench.speed(self.name, self.settings, workload, load)}, []


class FakeBench:
    """Starts fake sessions whose throughput `speed(name, settings, workload, load)` says."""

    def __init__(self, plan, speed):
        self.plan, self.speed = plan, speed
        self.started, self.measured, self.open = [], [], 0

    def start(self, contender, settings):
        self.started.append((contender.name, dict(settings)))
        if settings.get("threads") == 99:
            raise UserError(f"contender {contender.name}: no such thread")
        self.open += 1
        return FakeSession(self, contender, settings)


class FakeReference:
    def __init__(self, bench):
        self.hf_folder = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def score(self, sequences):
        return []


@pytest.fixture
def answers(monkeypatch):
    """Summaries of the greedy answers by settings of the candidate; right ones unless a test says otherwise."""
    wrong = []

    def judged(generate, score, hf_folder, tokens):
        settings = generate.__self__.settings
        gap = 3.0 if settings in wrong else 0.0
        return {"tokens": 8, "best_share": 1.0, "max_gap": gap, "mean_gap": 0.0}

    monkeypatch.setattr(tuning, "judged", judged)
    monkeypatch.setattr(tuning, "Reference", FakeReference)
    return wrong


def run_in(tmp_path):
    return RunFolder(tmp_path / "run")


def flat(name, settings, workload, load):
    return 100.0


def test_the_geometric_mean_over_all_levels_decides(tmp_path, answers):
    def speed(name, settings, workload, load):
        if settings.get("block_size") == 32:
            return {"batch": {1: 10.0, 4: 1000.0}, "prefill": {64: 100.0}}[workload][load]  # mean 100
        if settings.get("overlap"):
            return 110.0
        return 105.0

    run = run_in(tmp_path)
    chosen = tune(FakeBench(make_plan(), speed), run)
    assert chosen["ours"] == {"block_size": 16, "overlap": True}
    found = run.read("tuning")["contenders"]["ours"]
    assert found["winner"] == 2
    assert [c["score_tok_per_s"] for c in found["candidates"]] == pytest.approx([105, 100, 110])
    assert "geometric mean" in run.read("tuning")["criterion"]


def test_a_control_runs_with_the_settings_of_the_contender_that_it_repeats(tmp_path, answers):
    def speed(name, settings, workload, load):
        return 200.0 if settings.get("block_size") == 32 or settings.get("ubatch_tokens") else 100.0

    chosen = tune(FakeBench(make_plan(), speed), run_in(tmp_path))
    assert chosen["ours again"] == chosen["ours"] == {"block_size": 32}
    assert chosen["theirs"] == {"ubatch_tokens": 64} and chosen["untuned"] == {}


def test_own_settings_are_the_first_candidate_and_win_a_tie(tmp_path, answers):
    plan = make_plan()
    assert candidates_of(plan, plan.contenders[0]) == [
        {"block_size": 16}, {"block_size": 32}, {"block_size": 16, "overlap": True},
    ]  # fmt: skip
    assert tune(FakeBench(plan, flat), run_in(tmp_path))["ours"] == {"block_size": 16}


def test_every_round_is_recorded_in_a_fresh_process_with_prompts_of_its_own(tmp_path, answers):
    bench, run = FakeBench(make_plan(rounds=2), flat), run_in(tmp_path)
    tune(bench, run)
    assert bench.open == 0, "a worker was left running"
    assert bench.started.count(("theirs", {"ubatch_tokens": 64})) == 2
    points = run.read("tuning")["contenders"]["theirs"]["candidates"][1]["points"]
    assert [(p["workload"], p["load"], p["round"]) for p in points] == [
        ("batch", 1, 1), ("batch", 4, 1), ("prefill", 64, 1), ("batch", 1, 2), ("batch", 4, 2), ("prefill", 64, 2),
    ]  # fmt: skip
    repeats = {repeat for *_, repeat in bench.measured}
    assert len(repeats) == 2 and min(repeats) > 1000, "the race's own prompts must stay unseen"


def test_a_killed_tuning_goes_on_with_the_next_candidate(tmp_path, answers):
    class Killed(Exception):
        pass

    def dies(name, settings, workload, load):
        if settings.get("overlap"):
            raise Killed
        return 100.0

    run = run_in(tmp_path)
    with pytest.raises(Killed):
        tune(FakeBench(make_plan(), dies), run)
    before = json.loads(json.dumps(run.read("tuning")))
    assert len(before["contenders"]["ours"]["candidates"]) == 2
    bench = FakeBench(make_plan(), flat)
    tune(bench, run)
    assert [settings for name, settings in bench.started if name == "ours"] == [{"block_size": 16, "overlap": True}]
    assert run.read("tuning")["contenders"]["ours"]["candidates"][:2] == before["contenders"]["ours"]["candidates"]
    again = FakeBench(make_plan(), flat)
    tune(again, run)
    assert again.started == []


def test_settings_that_do_not_run_are_kept_with_their_reason(tmp_path, answers):
    plan = make_plan(candidates={"ours": [{"threads": 99}]})
    run = run_in(tmp_path)
    assert tune(FakeBench(plan, flat), run)["ours"] == {"block_size": 16}
    refused = run.read("tuning")["contenders"]["ours"]["candidates"][1]
    assert refused["refused"] == "contender ours: no such thread" and refused["score_tok_per_s"] is None


def test_fast_and_wrong_does_not_win(tmp_path, answers):
    answers.append({"block_size": 32})
    bench = FakeBench(make_plan(), lambda name, settings, w, load: 900.0 if settings.get("block_size") == 32 else 100.0)
    run = run_in(tmp_path)
    assert tune(bench, run)["ours"] == {"block_size": 16}
    refused = run.read("tuning")["contenders"]["ours"]["candidates"][1]
    assert "does not agree with the float32 reference" in refused["refused"]
    assert not [m for m in bench.measured if m[1] == {"block_size": 32}], "nothing is timed on a wrong answer"


def test_no_settings_that_run_is_an_error():
    with pytest.raises(UserError, match="contender c: none of its 1 settings runs: too old"):
        winner("c", [{"score_tok_per_s": None, "refused": "too old"}])


def test_a_plan_without_tuning_starts_nothing(tmp_path, answers):
    plan = make_plan().model_copy(update={"tuning": None})
    bench, run = FakeBench(plan, flat), run_in(tmp_path)
    chosen = tune(bench, run)
    assert bench.started == [] and not run.has("tuning")
    assert chosen == {"ours": {"block_size": 16}, "theirs": {}, "untuned": {}, "ours again": {}}


def test_score_is_a_geometric_mean():
    assert score([{"tok_per_s": 4.0}, {"tok_per_s": 9.0}]) == pytest.approx(math.sqrt(36))

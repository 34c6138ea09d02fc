"""Tuning of servers: all combinations are tried, failures never win, finalists race under a name that says so."""

import pytest

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.tuning import BY_OBJECTIVES, BY_THROUGHPUT, candidates_of, finalists, score, tune


def make_plan(finalists=2, **changes):
    document = {
        "name": "p", "kind": "serving", "model": "m", "dtype": "bfloat16",
        "contenders": [
            {"name": "vLLM", "server": "wholecurve", "settings": {"max_sequences": 8}},
            {"name": "plain", "server": "wholecurve"},
            {"name": "vLLM again", "server": "wholecurve", "control_of": "vLLM"},
        ],
        "workload": {"kind": "lengths", "prompt_tokens": [4, 8], "output_tokens": [2, 4]},
        "load": {"closed": {"concurrency": [1, 4]}},
        "tuning": {"levels": [1, 4], "contenders": {
            "vLLM": {"grid": {"max_step_tokens": [64, 128], "overlap": [True, False]}, "finalists": finalists}}},
    }  # fmt: skip
    return ServingPlan.model_validate({**document, **changes})


def point(load, throughput, failed=0, share=None):
    outcomes = {"completed": 4 - failed, "refused": failed}
    return {"load": load, "output_throughput_tok_per_s": throughput, "slo_share": share, "n_failed": failed,
            "outcomes": outcomes}  # fmt: skip


class Measuring:
    """Answers with the points that `says(settings)` gives, and remembers what it was asked."""

    def __init__(self, says):
        self.says, self.asked = says, []

    def __call__(self, contender, settings):
        self.asked.append(settings)
        return self.says(settings)


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", make_plan().document(), {})


def by_step_tokens(settings):
    speed = settings.get("max_step_tokens", 100) + (10 if settings.get("overlap") else 0)
    return [point(1, speed), point(4, 4 * speed)]


def test_its_own_settings_are_tried_first_then_every_combination_laid_over_them():
    plan = make_plan()
    tried = candidates_of(plan.contenders[0], plan.tuning.contenders["vLLM"])
    assert tried[0] == {"max_sequences": 8} and len(tried) == 5
    assert all(settings["max_sequences"] == 8 for settings in tried)
    assert len({tuple(sorted(settings.items())) for settings in tried}) == 5


def test_a_combination_that_is_its_own_settings_is_not_tried_twice():
    plan = make_plan(contenders=[{"name": "vLLM", "server": "wholecurve", "settings": {"overlap": True}}],
                     tuning={"levels": [1], "contenders": {"vLLM": {"grid": {"overlap": [True, False]}}}})  # fmt: skip
    assert candidates_of(plan.contenders[0], plan.tuning.contenders["vLLM"]) == [{"overlap": True}, {"overlap": False}]


def test_finalists_race_under_names_that_say_their_place_and_a_control_repeats_the_first(folder):
    race = tune(make_plan(), folder, Measuring(by_step_tokens))
    assert [contender.name for contender in race] == [
        "vLLM (finalist 1 of 5)", "vLLM (finalist 2 of 5)", "plain", "vLLM again",
    ]  # fmt: skip
    best = {"max_sequences": 8, "max_step_tokens": 128, "overlap": True}
    assert race[0].settings == race[3].settings == best and race[3].control_of == race[0].name
    assert race[1].settings == {**best, "overlap": False} and race[2].settings == {}


def test_the_geometric_mean_decides_so_that_no_level_outweighs_another():
    assert score([point(1, 10), point(4, 1000)]) == pytest.approx(100)
    even, lopsided = [point(1, 50), point(4, 500)], [point(1, 20), point(4, 900)]
    assert score(even) > score(lopsided), "a sum would choose the other one"


def test_with_objectives_the_share_that_keeps_them_decides_before_throughput(folder):
    def says(settings):
        fast = settings.get("max_step_tokens") == 128
        return [point(1, 900 if fast else 100, share=0.5 if fast else 0.9)] * 2

    race = tune(make_plan(finalists=1, slo={"e2e_ms": 1}), folder, Measuring(says))
    assert "max_step_tokens" not in race[0].settings
    assert folder.read("tuning")["criterion"] == BY_OBJECTIVES


@pytest.mark.parametrize("place", [0, 1])
def test_a_candidate_with_failures_is_kept_with_its_reason_and_cannot_be_chosen(folder, place):
    def says(settings):
        points = [point(1, 10), point(4, 10)]
        if settings.get("max_step_tokens") == 128:
            points[place] = point(points[place]["load"], 9999, failed=1)
        return points

    race = tune(make_plan(finalists=4), folder, Measuring(says))
    assert [c.name for c in race if "finalist" in c.name] == [f"vLLM (finalist {i} of 5)" for i in (1, 2, 3)]
    assert all(c.settings.get("max_step_tokens") != 128 for c in race)
    refused = [c for c in folder.read("tuning")["contenders"]["vLLM"]["candidates"] if c["refused"]]
    assert len(refused) == 2 and all(len(c["points"]) == 2 for c in refused), "the race keeps what was measured"
    assert f"requests failed at load {[1, 4][place]}: 3 completed, 1 refused" == refused[0]["refused"]


def test_a_candidate_whose_server_does_not_start_is_kept_with_its_reason(folder):
    def says(settings):
        if settings.get("overlap"):
            raise UserError("contender vLLM: its server ended with code 1: no such flag")
        return [point(1, 10), point(4, 10)]

    tune(make_plan(), folder, Measuring(says))
    found = folder.read("tuning")["contenders"]["vLLM"]["candidates"]
    assert [c["refused"] is not None for c in found] == [False, True, False, True, False]
    assert "no such flag" in found[1]["refused"] and found[1]["score_tok_per_s"] is None


def test_nothing_that_runs_is_an_error_that_says_why(folder):
    def says(settings):
        raise UserError("out of memory")

    with pytest.raises(UserError, match="contender vLLM: none of its 5 settings runs: out of memory"):
        tune(make_plan(), folder, Measuring(says))


def test_equal_candidates_keep_the_order_in_which_they_were_tried():
    equal = [{"score_tok_per_s": 5.0, "slo_share": None} for _ in range(3)]
    assert finalists("x", equal, 2, by_objectives=False) == [0, 1]


def test_a_killed_tuning_goes_on_where_it_stopped(folder):
    class Killed(BaseException):
        pass

    def dies(settings):
        if len(first.asked) == 3:
            raise Killed
        return by_step_tokens(settings)

    first = Measuring(dies)
    with pytest.raises(Killed):
        tune(make_plan(), folder, first)
    second = Measuring(by_step_tokens)
    race = tune(make_plan(), folder, second)
    assert len(second.asked) == 3 and second.asked[0] == first.asked[2], "two were finished"
    third = Measuring(by_step_tokens)
    assert tune(make_plan(), folder, third) == race and not third.asked


def test_without_tuning_the_contenders_race_as_they_are(folder):
    plan = make_plan(tuning=None)
    assert tune(plan, folder, Measuring(None)) == list(plan.contenders) and not folder.has("tuning")


def test_the_criterion_is_in_the_record(folder):
    tune(make_plan(), folder, Measuring(by_step_tokens))
    assert folder.read("tuning")["criterion"] == BY_THROUGHPUT

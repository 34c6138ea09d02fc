"""A serving plan: every mistake is one line that names the field; what is measured follows from what is hashed."""

import pytest
import yaml

from wholecurve.errors import UserError
from wholecurve.studies.kinds import read_study_plan
from wholecurve.studies.plan import Plan
from wholecurve.studies.plan_file import validated
from wholecurve.studies.serving import plan as plan_module
from wholecurve.studies.serving.load.kinds import ClosedLoad, OpenLoad
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.plan_parts import LoadPlan, RequestsPlan, WarmUpPlan

DOCUMENT = {
    "name": "p", "kind": "serving", "model": "m", "dtype": "bfloat16", "repeats": 2,
    "contenders": [
        {"name": "ours", "server": "wholecurve", "settings": {"overlap": True}},
        {"name": "ours again", "server": "wholecurve", "control_of": "ours"},
    ],
    "workload": {"kind": "lengths", "prompt_tokens": [4, 8], "output_tokens": [2, 4]},
    "load": {"closed": {"concurrency": [1, 4]}},
}  # fmt: skip
RUNNING = {"name": "far", "server": "running", "url": "http://127.0.0.1:9/v1", "device_kind": "H200"}


@pytest.fixture
def refused(tmp_path):
    """The one line that a changed plan is refused with; a value of None takes a field away."""

    def message(**changes):
        document = {name: value for name, value in {**DOCUMENT, **changes}.items() if value is not None}
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        with pytest.raises(UserError) as caught:
            read_study_plan(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ") and "\n" not in text
        return text.removeprefix(f"{path}: ")

    return message


def contenders(**changes):
    return [{**DOCUMENT["contenders"][0], **changes}]


def load(**kinds):
    return {"load": kinds}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contenders": contenders(server="vlm")}, "there is no server 'vlm'; there is: wholecurve"),
        ({"contenders": contenders(settings={"blocksize": 4})}, "contenders.0.settings: unknown setting 'blocksize'"),
        ({"contenders": contenders(settings={"max_sequences": 0})}, "'max_sequences' of server wholecurve is 0"),
        ({"contenders": contenders(profile="vllm")}, "profile: only a contender with server: running has one"),
        ({"contenders": [{**RUNNING, "profile": "vlm"}]}, "contenders.0.profile: there is no profile 'vlm'"),
        ({"contenders": contenders(url="http://a/v1")}, "url: only a contender with server: running has one"),
        ({"contenders": contenders(control_of="them")}, "control_of 'them' of 'ours' must name another"),
        ({"contenders": contenders() * 2}, "contenders: the name 'ours' is used twice"),
        ({"contenders": [{**RUNNING, "url": None}]}, "url: 'far' is a running server, so its address is needed"),
        ({"contenders": [{**RUNNING, "url": "127.0.0.1:80"}]}, "url: '127.0.0.1:80' is no address of an API"),
        ({"contenders": [{**RUNNING, "api_key_env": "sk-1"}]}, "a key never goes into a plan"),
        ({"dtype": None}, "dtype: 'ours' is started here; write auto, bfloat16 or float32"),
        ({"contenders": [{**RUNNING, "device_kind": None}]}, "device_kind: say what the running server 'far' runs on"),
        ({"contenders": [{**RUNNING, "settings": {"a": 1}}]}, "settings: 'far' runs already"),
        ({"model": None}, "model: 'ours' is started here, so the model that it loads is needed"),
        ({"load": None}, "load, maximum_load: at least one of them must be there"),
        (load(closed={"concurrency": [1]}, open={"rate_per_s": [1]}), "exactly one of closed, sessions, open"),
        (load(), "exactly one of closed, sessions, open is needed; there is: none"),
        (load(closed={"concurrency": [4, 4]}), "closed: the load level 4 is listed twice"),
        (load(closed={"concurrency": [0]}), "load.closed.concurrency.0"),
        (load(open={"rate_per_s": [float("inf")]}), "load.open.rate_per_s.0"),
        (load(open={"rate_per_s": [1], "burstiness": 0.5}), "burstiness: 0.5 means nothing for arrivals 'poisson'"),
        (load(open={"rate_per_s": [1], "arrivals": "recorded"}), "only a trace has recorded arrivals"),
        ({"requests": {"at_least": 4, "at_most": 6}}, "6 sessions are fewer than two for each of the 4"),
        ({"requests": {"at_least": 9, "at_most": 6}}, "at_most: 6 is below at_least, 9"),
        ({"requests": {"seconds": 10}}, "requests.at_most: with seconds, a closed load needs it"),
        ({"prefix_cache": "on"}, "prefix_cache"),
        ({"slo": {"share": 0.9}}, "at least one of ttft_ms, tpot_ms, e2e_ms is needed"),
        ({"slo": {"ttft_ms": 1, "share": 90}}, "slo.share"),
        ({"maximum_load": {"by": "rate", "low": 1, "high": 4}}, "maximum_load: it looks for the largest load"),
        ({"slo": {"ttft_ms": 1}, "maximum_load": {"by": "rate", "low": 4, "high": 4}}, "low: 4 is not below high, 4"),
        ({"slo": {"ttft_ms": 1}, "maximum_load": {"by": "concurrency", "low": 1.5, "high": 4}}, "whole numbers"),
        ({"workload": {"kind": "lengts"}}, "workload: its kind is needed; there is: lengths, documents, agents, trace"),
        ({"workload": "lengths"}, "workload: a mapping of fields is needed (it is 'lengths')"),
        ({"workload": {"prompt_tokens": [1, 2]}}, "workload: its kind is needed"),
        ({"kind": None}, "kind: a plan that puts servers under load needs kind: serving"),
        (load(open={"rate": [1]}), "load.open.rate: unknown field (and 1 more)"),
        (load(closed={"concurrency": 4}), "load.closed.concurrency: a list is needed (it is 4)"),
        ({"contender": []}, "contender: unknown field"),
        ({"kind": "servings"}, "kind: 'servings' is no kind of study"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_field(refused, changes, says):
    assert says in refused(**changes)


TUNING = {"contenders": {"ours": {"grid": {"overlap": [True, False]}}}, "levels": [4]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"levels": [2]}, "tuning.levels: 2 is no level of the load; there is: 1, 4"),
        (
            {"contenders": {"ours again": {"grid": {"overlap": [True]}}}},
            "it must name a contender that is started here",
        ),
        (
            {"contenders": {"theirs": {"grid": {"overlap": [True]}}}},
            "tuning.contenders.theirs: it must name a contender",
        ),
        ({"contenders": {"ours": {"grid": {"overlaps": [True]}}}}, "tuning.contenders.ours.grid: unknown setting"),
        (
            {"budget": 2},
            "tuning.contenders.ours.grid: 2 combinations and its own settings are more than the budget of 2",
        ),
        ({"contenders": {"ours": {"grid": {"overlap": [True, False]}, "finalists": 4}}}, "finalists: 4 of 3 settings"),
    ],
)
def test_a_mistake_in_the_tuning_is_told_before_anything_runs(refused, changes, says):
    assert says in refused(tuning={**TUNING, **changes})


def test_agents_are_loaded_by_sessions_not_by_requests(refused):
    agents = {"kind": "agents", "turns": [2, 3], "first_prompt_tokens": [8, 8], "reply_tokens": [4, 4],
              "tool_result_tokens": [4, 4], "user_tokens": [4, 4]}  # fmt: skip
    assert "use load.sessions" in refused(workload=agents)
    plan = ServingPlan.model_validate({**DOCUMENT, "workload": agents, "load": {"sessions": {"concurrency": [2]}}})
    assert (plan.workload_name, plan.load.kind) == ("agents", "sessions")


def test_a_plan_without_kind_is_a_study_of_engines(tmp_path):
    document = {"name": "p", "model": "m", "contenders": [{"name": "ours", "engine": "wholecurve"}],
                "prefill": {"step_tokens": [16]}}  # fmt: skip
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert isinstance(read_study_plan(path), Plan)
    path.write_text(yaml.safe_dump(DOCUMENT), encoding="utf-8")
    assert isinstance(read_study_plan(path), ServingPlan)


def test_the_bare_word_off_is_off(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT) + "prefix_cache: off\n", encoding="utf-8")
    assert read_study_plan(path).prefix_cache == "off"


def test_hash_follows_content_harness_version_and_the_recorded_trace(tmp_path, monkeypatch):
    def hash_of(**changes):
        return ServingPlan.model_validate({**DOCUMENT, **changes}).document()["plan_hash"]

    assert hash_of() == hash_of() != hash_of(seed=1)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("one\n")
    replay = {"workload": {"kind": "trace", "path": str(trace)}}
    before = hash_of(**replay)
    trace.write_text("another\n")
    assert hash_of(**replay) != before, "the same name, but another workload"
    plain = hash_of()
    monkeypatch.setattr(plan_module, "SERVING_HARNESS_VERSION", plan_module.SERVING_HARNESS_VERSION + 1)
    assert hash_of() != plain


def test_the_key_of_a_server_is_no_part_of_a_plan():
    contender = {**RUNNING, "api_key_env": "A_KEY"}
    assert ServingPlan.model_validate({**DOCUMENT, "contenders": [contender]}).contenders[0].api_key_env == "A_KEY"
    pasted = {**DOCUMENT, "contenders": [{**RUNNING, "api_key_env": "sk-verysecret"}]}
    with pytest.raises(UserError) as caught:
        validated(ServingPlan, pasted, "plan.yaml")
    assert "verysecret" not in str(caught.value)
    for field in ("api_key", "key"):
        with pytest.raises(ValueError, match="Extra inputs"):
            ServingPlan.model_validate({**DOCUMENT, "contenders": [{**RUNNING, field: "secret"}]})


@pytest.mark.parametrize(
    ("requests", "kind", "level", "count"),
    [
        ({"per_slot": 4, "at_least": 30}, "concurrency", 1, 30),
        ({"per_slot": 4, "at_least": 30}, "concurrency", 16, 64),
        ({"per_slot": 4, "at_least": 30, "at_most": 40}, "concurrency", 16, 40),
        ({"seconds": 20, "at_most": 500}, "sessions", 4, 500),
        ({"seconds": 20}, "request_rate", 4.5, 90),
        ({"seconds": 20, "at_least": 30}, "request_rate", 0.1, 30),
        ({"at_least": 50}, "request_rate", 4, 50),
    ],
)
def test_how_many_sessions_a_point_has(requests, kind, level, count):
    assert RequestsPlan(**requests).count(kind, level) == count


def test_a_warm_up_has_at_least_as_many_requests_as_the_point_has_in_flight():
    assert [WarmUpPlan().count("concurrency", c) for c in (1, 4, 64)] == [4, 4, 64]
    assert WarmUpPlan(per_slot=2).count("sessions", 8) == 16


def test_the_load_of_a_level():
    assert LoadPlan(closed={"concurrency": [4], "ramp_s": 2}).at(4, seed=1) == ClosedLoad(4, 2)
    bursts = {"rate_per_s": [0.5], "arrivals": "bursts", "burstiness": 0.3, "most_in_flight": 9}
    assert LoadPlan(open=bursts).at(0.5, seed=7) == OpenLoad(0.5, "bursts", 0.3, 0.0, 7, 9)

"""A serving study on a scripted server: complete rows, and whatever a server does the study goes on and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_openai
import pytest

from wholecurve.curves.serving_metrics import reduce_serving
from wholecurve.curves.slo import Slo
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.schedule import schedule
from wholecurve.studies.serving.study import ServingStudy


@pytest.fixture(autouse=True)
def fake_server(monkeypatch):
    """The server "fake" for the length of a test, and no two seconds of watching what idles."""
    from wholecurve.studies.serving import servers, study

    monkeypatch.setattr(servers, "SERVERS", dict(servers.SERVERS))
    watch = study.stop_what_spins
    monkeypatch.setattr(study, "stop_what_spins", lambda lives: watch(lives, seconds=0.05))
    return fake_openai.register()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder that says how large a model is; a scripted server needs no weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 256, "max_position_embeddings": 64}))
    return str(folder)


@pytest.fixture
def make(model, tmp_path):
    def plan(**changes):
        document = {
            "name": "scripted", "kind": "serving", "model": model, "dtype": "float32", "threads": 1, "repeats": 1,
            "contenders": [{"name": "ours", "server": "fake"},
                           {"name": "ours again", "server": "fake", "control_of": "ours"}],
            "workload": {"kind": "lengths", "prompt_tokens": [4, 8], "output_tokens": [3, 6]},
            "load": {"closed": {"concurrency": [1, 3]}},
            "requests": {"per_slot": 2, "at_least": 6},
        }  # fmt: skip
        return ServingPlan.model_validate({**document, **changes})

    return plan


def run(plan, out):
    return ServingStudy(plan, out).run()


def fakes(**settings):
    return [{"name": "ours", "server": "fake"}, {"name": "theirs", "server": "fake", "settings": settings}]


@pytest.mark.timeout(120)
def test_a_study_is_complete_and_every_number_follows_from_its_trace(make, tmp_path):
    plan = make(repeats=2, slo={"e2e_ms": 10000})
    found = run(plan, tmp_path / "run")
    points = found.points()
    expected = schedule(plan, ["ours", "ours again"])
    assert [(r.order, r.contender, r.load, r.repeat) for r in points.itertuples()] == [
        (p.order, p.contender, p.load, p.repeat) for p in expected
    ]
    row = points.iloc[0].to_dict()
    traces = found.trace(expected[0].point_id)
    again = reduce_serving(traces, "concurrency", row["load"], slo=Slo(e2e_ms=10000))
    for name, value in again.items():
        if not name.startswith(("client_", "flags", "n_not_sent")) and value is not None:
            assert row[name] == value, name
    assert row["outcomes"] == {"completed": 6} and row["n_warm_up"] >= 4 and not row["n_warm_up_failed"]
    assert row["counters"]["generated_tokens"] == sum(trace.output_tokens for trace in traces), "warm-up is outside"
    assert row["settings"]["server"] == "fake" and row["settings"]["idle"]["stopped"] is False
    assert row["source"] == "measured (cpu)" and row["prefix_cache"] == "off" and row["restarts"] == 0
    agreement = found.read("agreement")["ours"]
    assert agreement == {"checked": False, "why": "the model has no tokenizer"}


def test_every_contender_gets_the_same_prompts_and_no_level_or_repeat_gets_those_of_another(make, tmp_path):
    plan = make(repeats=2)
    bench = ServingStudy(plan, tmp_path).bench
    prompts = {}
    for point in schedule(plan, ["ours", "ours again"]):
        sent = [tuple(turn.prompt) for session in bench.prepared(point).sessions for turn in session.turns]
        sent += [tuple(s.turns[0].prompt) for s in bench.warm_up(point, bench.prepared(point).sessions)[0]]
        prompts.setdefault((point.load, point.repeat), set()).add(tuple(sent))
    assert all(len(sent) == 1 for sent in prompts.values()), "contenders differ"
    everything = [prompt for sent in prompts.values() for prompt in next(iter(sent))]
    assert len(set(everything)) == len(everything), "a cache could know a prompt from before"


@pytest.mark.timeout(120)
def test_a_server_that_dies_once_loses_the_point_and_it_is_measured_again_on_a_new_one(make, tmp_path):
    plan = make(contenders=fakes(die_at=14, died=str(tmp_path / "died")))
    found = run(plan, tmp_path / "run")
    points = found.points()
    assert len(points) == 4 and points["n_failed"].sum() == 0
    assert sorted(points.loc[points["contender"] == "theirs", "restarts"]) in ([0, 1], [1, 1])
    assert points.loc[points["contender"] == "ours", "restarts"].sum() == 0
    (fault,) = found.read("faults")["faults"]
    assert fault["contender"] == "theirs" and fault["what"] == "the server died; the point is measured again"


@pytest.mark.timeout(120)
def test_a_server_that_dies_each_time_leaves_its_outcomes_and_the_others_are_measured(make, tmp_path):
    found = run(make(contenders=fakes(die_at=8)), tmp_path / "run")
    points = found.points()
    assert set(points["contender"]) == {"ours", "theirs"} and len(points) == 4
    theirs = points[points["contender"] == "theirs"]
    assert (theirs["n_failed"] > 0).all() and (points.loc[points["contender"] == "ours", "n_failed"] == 0).all()
    assert all(any(flag.startswith("server-died") for flag in flags) for flags in theirs["flags"])
    assert "the server died again" in {fault["what"] for fault in found.read("faults")["faults"]}


@pytest.mark.timeout(120)
def test_a_server_that_refuses_everything_is_a_finding_not_an_end(make, tmp_path):
    found = run(make(contenders=fakes(refuse=True)), tmp_path / "run")
    points = found.points()
    theirs = points[points["contender"] == "theirs"]
    assert len(theirs) == 2 and (theirs["n_completed"] == 0).all()
    assert all(set(outcomes) == {"refused"} for outcomes in theirs["outcomes"])
    assert all(any(flag.startswith("failures") for flag in flags) for flags in theirs["flags"])


@pytest.mark.timeout(60)
def test_a_server_that_does_not_start_ends_the_study_with_its_last_words(make, tmp_path):
    with pytest.raises(UserError, match=r"contender theirs: its server ended with code 7: out of luck") as caught:
        run(make(contenders=fakes(never_starts=True)), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not RunFolder(tmp_path / "run").point_ids()


@pytest.mark.timeout(60)
def test_a_prefix_cache_that_is_off_and_hits_all_the_same_is_flagged(make, tmp_path, fake_server):
    fake_server.takes_token_ids = False  # or its start would find out
    plan = make(contenders=fakes(hit_share=0.5)[1:], load={"closed": {"concurrency": [2]}}, workload={
        "kind": "lengths", "prompts": "text", "prompt_tokens": [4, 8], "output_tokens": [3, 6]})  # fmt: skip
    row = run(plan, tmp_path / "run").points().iloc[0]
    assert 0.4 < row["server_cache_hit_rate"] < 0.6
    assert [flag for flag in row["flags"] if flag.startswith("prefix-cache: it is off, yet ")]


@pytest.mark.timeout(60)
def test_a_warmed_cache_is_warmed_with_the_points_own_first_prompts(make, tmp_path):
    plan = make(prefix_cache="warm")
    bench = ServingStudy(plan, tmp_path).bench
    point = schedule(plan, ["ours"])[0]
    sessions = bench.prepared(point).sessions
    sent, load = bench.warm_up(point, sessions)
    assert [s.turns[0].prompt for s in sent[-len(sessions) :]] == [s.turns[0].prompt for s in sessions]
    assert all(s.turns[0].output_tokens == 1 for s in sent[-len(sessions) :])
    assert load.concurrency == point.load


@pytest.mark.timeout(120)
def test_one_at_a_time_no_two_servers_are_up_together(make, tmp_path, fake_server, monkeypatch):
    from wholecurve.studies.serving.live import LiveServer

    up, most = set(), []
    enter, leave = LiveServer.__enter__, LiveServer.__exit__
    monkeypatch.setattr(
        LiveServer, "__enter__", lambda s: (enter(s), up.add(s.contender.name), most.append(set(up)))[0]
    )
    monkeypatch.setattr(LiveServer, "__exit__", lambda s, *e: (up.discard(s.contender.name), leave(s, *e))[1])
    run(make(servers="one at a time", repeats=2), tmp_path / "run")
    assert most == [{"ours"}, {"ours again"}, {"ours again"}, {"ours"}]


@pytest.mark.timeout(120)
def test_the_maximum_load_is_searched_after_the_race_and_every_probe_is_kept(make, tmp_path):
    plan = make(
        slo={"e2e_ms": 60000}, maximum_load={"by": "concurrency", "low": 1, "high": 4},
        load={"closed": {"concurrency": [2]}},
        contenders=fakes(refuse=True),
    )  # fmt: skip
    found = run(plan, tmp_path / "run")
    answers = found.read("maximum_load")["contenders"]
    assert answers["ours"]["1"]["met_at"] == 4 and answers["ours"]["1"]["missed_at"] is None
    assert answers["theirs"]["1"] == {
        "met_at": None, "missed_at": 1.0, "says": "not kept at 1 in flight, the lowest load of the plan",
        "probes": [{"load": 1.0, "met": False}],
    }  # fmt: skip
    points = found.points()
    probes = points[points["workload"] == "maximum_load"]
    assert sorted(zip(probes["contender"], probes["load"])) == [("ours", 1), ("ours", 4), ("theirs", 1)]
    assert len(set(points["order"])) == len(points), "places in the study are used once"
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("points/*")}
    run(plan, tmp_path / "run")
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("points/*")}


@pytest.mark.timeout(120)
def test_tuning_measures_every_combination_and_its_finalists_race(make, tmp_path):
    plan = make(
        contenders=[
            {"name": "ours", "server": "fake", "settings": {"token_ms": 12}},
            {"name": "ours again", "server": "fake", "control_of": "ours"},
        ],
        load={"closed": {"concurrency": [2]}},
        tuning={"levels": [2], "contenders": {"ours": {"grid": {"token_ms": [1, 30]}, "finalists": 1}}},
    )
    found = run(plan, tmp_path / "run")
    tuned = found.read("tuning")["contenders"]["ours"]
    assert [candidate["settings"]["token_ms"] for candidate in tuned["candidates"]] == [12, 1, 30]
    assert tuned["finalists"] == [1] and tuned["winner"] == 1, "the fastest by far"
    assert set(found.points()["contender"]) == {"ours (finalist 1 of 3)", "ours again"}
    raced = {contender["name"]: contender for contender in found.read("contenders")["contenders"]}
    assert raced["ours again"]["control_of"] == "ours (finalist 1 of 3)"
    assert raced["ours again"]["settings"] == {"token_ms": 1}


@pytest.mark.timeout(120)
def test_agents_are_measured_by_sessions_and_open_loads_by_their_rate(make, tmp_path):
    agents = {"kind": "agents", "turns": [2, 2], "first_prompt_tokens": [8, 8], "reply_tokens": [3, 4],
              "tool_result_tokens": [4, 4], "user_tokens": [4, 4], "system_tokens": 4}  # fmt: skip
    contenders = [{"name": "ours", "server": "fake"}]
    plan = make(workload=agents, load={"sessions": {"concurrency": [2]}}, contenders=contenders, prefix_cache="cold")
    row = run(plan, tmp_path / "sessions").points().iloc[0]
    assert (row["workload"], row["load_kind"], row["load"]) == ("agents", "sessions", 2)
    assert (row["n_sessions"], row["sessions_completed"], row["n_requests"], row["n_not_sent"]) == (6, 6, 12, 0)
    found = run(make(load={"open": {"rate_per_s": [12.5]}}, contenders=contenders), tmp_path / "open")
    row = found.points().iloc[0]
    assert found.point_ids() == ["serving-ours-12.5-per-s-r1"]
    assert (row["load_kind"], row["load"], row["n_requests"]) == ("request_rate", 12.5, 6)
    assert len(found.trace("serving-ours-12.5-per-s-r1")) == 6


@pytest.mark.timeout(60)
def test_a_running_server_is_measured_and_left_running(make, tmp_path, fake_server):
    from wholecurve.studies.serving.servers.ports import take_port

    port = take_port()
    script = json.dumps({"token_ms": 1, "hit_share": 0, "die_at": 0, "died": None, "refuse": False})
    server = subprocess.Popen([sys.executable, fake_openai.__file__, str(port), script])
    try:
        wait_for(port)
        far = {"name": "far", "server": "running", "url": f"http://127.0.0.1:{port}/v1", "device_kind": "H200",
               "profile": "vllm", "usd_per_hour": 3.5, "devices": 2}  # fmt: skip
        plan = make(contenders=[far], model=None, workload={
            "kind": "lengths", "prompts": "text", "prompt_tokens": [4, 8], "output_tokens": [3, 6]})  # fmt: skip
        row = run(plan, tmp_path / "run").points().iloc[0]
        assert server.poll() is None, "it was stopped"
    finally:
        server.kill()
        server.wait()
    assert (row["device_kind"], row["devices"], row["source"]) == ("gpu", 2, "measured (gpu)")
    assert row["hardware"] == "H200"
    assert row["usd_per_hour"] == 3.5 and row["n_failed"] == 0 and row["settings"]["model"] == "fake"


def wait_for(port):
    import socket
    import time

    for _ in range(200):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the scripted server did not start")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload": {"kind": "lengths", "prompt_tokens": [60, 70], "output_tokens": [3, 6]}}, "model's window"),
        ({"capacity": {"sequences": 2}}, "capacity.sequences: 2 requests at once are fewer than the 3"),
        ({"capacity": {"cache_tokens": 20}}, "capacity.cache_tokens: 20 tokens do not hold the longest request"),
        ({"workload": {"kind": "trace", "path": "nowhere.jsonl"}}, "workload.path: nowhere.jsonl: no such file"),
        ({"api": "chat"}, "api chat takes messages, and the workload's prompts are ids"),
        ({"capacity": {"cache_tokens": 10**12}}, "GiB are free"),
        ({"contenders": [{"name": "far", "server": "running", "url": "http://127.0.0.1:9/v1", "device_kind": "cpu"}]},
         "contender far: http://127.0.0.1:9/v1/models"),
        ({"contenders": [{"name": "far", "server": "running", "url": "http://127.0.0.1:9/v1", "device_kind": "cpu",
                          "api_key_env": "NO_SUCH_KEY_HERE"}]}, "environment variable NO_SUCH_KEY_HERE: not set"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_before_a_server_starts(make, model, tmp_path, changes, says):
    shape = {"vocab_size": 256, "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "hidden_size": 8}  # fmt: skip
    (Path(model) / "config.json").write_text(json.dumps(shape))
    with pytest.raises(UserError) as caught:
        ServingStudy(make(**changes), tmp_path / "run")
    assert says in str(caught.value) and not (tmp_path / "run").exists()


def test_more_connections_than_open_files_are_told_before_anything_starts(make, tmp_path, monkeypatch):
    from wholecurve.studies.serving import checks

    monkeypatch.setattr(checks.resource, "getrlimit", lambda which: (203, 203))
    ServingStudy(make(), tmp_path / "run")
    monkeypatch.setattr(checks.resource, "getrlimit", lambda which: (202, 202))
    with pytest.raises(UserError, match=r"3 requests in flight need about 203 open files .* 202 are allowed"):
        ServingStudy(make(), tmp_path / "run")


def test_all_that_stands_in_the_way_is_told_at_once(make, tmp_path):
    far = {"server": "running", "url": "http://127.0.0.1:9/v1", "device_kind": "cpu"}
    with pytest.raises(UserError) as caught:
        ServingStudy(make(contenders=[{"name": name, **far} for name in ("a", "b")]), tmp_path / "run")
    first, *lines = str(caught.value).splitlines()
    assert first == "2 things stand in the way, nothing was started:"
    assert [line.split(":")[0].strip() for line in lines] == ["contender a", "contender b"]


def test_another_plan_or_another_machine_never_mixes_in(make, tmp_path):
    plan = make()
    RunFolder.create(tmp_path / "run", plan.document(), {"hardware": {"fingerprint": "another CPU"}})
    with pytest.raises(UserError, match="was begun on another machine"):
        run(plan, tmp_path / "run")
    with pytest.raises(UserError, match="holds a run of another plan or harness version"):
        run(make(seed=1), tmp_path / "run")


def test_importing_a_serving_study_loads_no_torch():
    code = "import sys; import wholecurve.studies.serving.study, wholecurve.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0

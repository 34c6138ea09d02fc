"""The recorded runs that notebooks replay: complete, derived from their traces, and what the committed figures show."""

import json
import shutil
from pathlib import Path

import pytest

from wholecurve.curves.serving_metrics import LAG_FIELDS, reduce_serving
from wholecurve.curves.slo import Slo
from wholecurve.figures.run_figures import figure_data, run_figures
from wholecurve.figures.save import data_sha256
from wholecurve.runs import RunFolder
from wholecurve.runs.bounds import above_bound
from wholecurve.studies.plan import HARNESS_VERSION, Plan
from wholecurve.studies.protocol import schedule
from wholecurve.studies.serving.plan import SERVING_HARNESS_VERSION, ServingPlan
from wholecurve.studies.serving.schedule import schedule as serving_schedule
from wholecurve.studies.session import REDUCE

ROOT = Path(__file__).parents[2]
# Metrics that a point gained after some run was recorded; its trace has them still.
ADDED_LATER = {"client_lag_ms"}
RECORDED = sorted((ROOT / "data" / "runs").glob("recorded-*"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.name)
def run(request):
    return RunFolder.open(request.param)


def test_there_is_a_recorded_run():
    assert "recorded-quick" in [path.name for path in RECORDED]


def test_it_is_complete_and_of_the_plan_that_it_names(run):
    serving = run.plan["plan"].get("kind") == "serving"
    plan = (ServingPlan if serving else Plan).model_validate(run.plan["plan"])
    names = [contender.name for contender in plan.contenders]
    if serving:  # finalists of the tuning take part under names of their own
        names = [contender["name"] for contender in run.read("contenders")["contenders"]]
    points = serving_schedule(plan, names) if serving else schedule(plan)
    assert run.plan["harness_version"] == (SERVING_HARNESS_VERSION if serving else HARNESS_VERSION)
    assert run.plan["plan_hash"] == plan.document()["plan_hash"]
    assert set(run.point_ids()) == {point.point_id for point in points}
    assert run.provenance["git"]["commit"] and run.provenance["packages"]["torch"]
    assert set(run.read("agreement")) == set(names)


def derived_from(trace, row, plan):
    """What the trace says of the point, without what only the study knew."""
    if row["workload"] in REDUCE:
        return REDUCE[row["workload"]](trace, row["load"])
    slo = Slo.from_document(plan["slo"]) if plan["slo"] else None
    lag = {name: row[f"client_{name}"] for name in LAG_FIELDS if f"client_{name}" in row}
    derived = reduce_serving(trace, row["load_kind"], row["load"], slo=slo, lag=lag)
    assert set(derived.pop("flags")) <= set(row["flags"])
    del derived["n_not_sent"], derived["sessions_completed"]  # they rest on the sessions that were planned
    return derived


def test_every_point_follows_from_its_trace(run):
    for point_id, row in zip(run.point_ids(), map(run.read, [f"points/{p}" for p in run.point_ids()])):
        derived = derived_from(run.trace(point_id), row, run.plan["plan"])
        assert derived.keys() - row.keys() <= ADDED_LATER
        for name, value in ((name, derived[name]) for name in derived.keys() & row.keys()):
            assert row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), point_id


def test_no_measurement_lies_above_its_bound(run):
    assert above_bound(run) == []


def test_a_measurement_above_its_bound_is_named(tmp_path):
    shutil.copytree(ROOT / "data" / "runs" / "recorded-quick", tmp_path / "run")
    copy = RunFolder(tmp_path / "run")
    row = copy.read("points/decode-openvino-genai-00001-r2")
    copy.write("points/decode-openvino-genai-00001-r2", {**row, "output_throughput_tok_per_s": 400.0})
    found = above_bound(copy)
    assert len(found) == 1
    assert found[0].startswith("openvino-genai, decode 1, repeat 2: output_throughput_tok_per_s is 2")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("recorded-quick", "."),
        ("recorded-peers-cpu", "race"),
        ("recorded-serving-cpu", "serving"),
        ("recorded-agents-cpu", "agents"),
    ],
)
def test_committed_figures_show_the_recorded_run(name, folder):
    run, folder = RunFolder.open(ROOT / "data" / "runs" / name), ROOT / "figures" / folder
    figures = {figure.name: figure for figure in run_figures(run)}
    committed = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    drawn = {stem for stem, sidecar in committed.items() if sidecar["source"].startswith(f"wholecurve run {name}")}
    assert set(figures) == drawn, "run `make figures`"
    for stem in drawn:
        sidecar = committed[stem]
        assert sidecar["data_sha256"] == data_sha256(figure_data(figures[stem])), f"{stem}: run `make figures`"
        assert sidecar["caption"] == figures[stem].caption and sidecar["alt"] == figures[stem].alt
        for kind in ("light.svg", "dark.svg", "png"):
            assert (folder / f"{stem}.{kind}").exists()

"""The search for the maximum load, as part of a repeat: contenders take turns, probe by probe.

Probes are points of the run like all others, with the workload "maximum_load"; `maximum_load.json` holds the answers.
A study that was killed tells the search its finished probes again and goes on from there.
"""

from collections.abc import Iterable

from wholecurve.files import read_json
from wholecurve.runs import RunFolder
from wholecurve.studies.serving.live import LiveServer
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.recorder import Recorder
from wholecurve.studies.serving.schedule import SEARCH_WORKLOAD, ServingPoint
from wholecurve.studies.serving.search import Bisection

_DOCUMENT = "maximum_load"


def not_searched(plan: ServingPlan, run: RunFolder, names: Iterable[str], repeat: int) -> set[str]:
    """Contenders whose search of this repeat is not finished."""
    if plan.maximum_load is None:
        return set()
    found = run.read(_DOCUMENT)["contenders"] if run.has(_DOCUMENT) else {}
    return {name for name in names if str(repeat) not in found.get(name, {})}


def search(
    plan: ServingPlan, run: RunFolder, recorder: Recorder, lives: dict[str, LiveServer], repeat: int, first_order: int
) -> None:
    """Find each contender's maximum load. `first_order`: the place in the study of the first probe of all."""
    pending = {name: Bisection(plan.maximum_load) for name in lives}
    forwards = repeat % 2 == 1
    while pending:
        for name in list(pending) if forwards else list(pending)[::-1]:
            if not _step(plan, run, recorder, lives[name], repeat, first_order, pending[name]):
                del pending[name]
        forwards = not forwards


def _step(
    plan: ServingPlan,
    run: RunFolder,
    recorder: Recorder,
    live: LiveServer,
    repeat: int,
    first_order: int,
    bisection: Bisection,
) -> bool:
    """One probe; False when the contender's search is over, or cannot go on."""
    name = live.contender.name
    load = bisection.next_load()
    if load is None:
        _write(run, name, repeat, bisection.result())
        return False
    order = first_order + sum(known.startswith("maximum-load-") for known in run.point_ids())
    point = ServingPoint(order, name, SEARCH_WORKLOAD, plan.maximum_kind, load, repeat)
    if run.has_point(point.point_id):
        row = read_json(run.path / "points" / f"{point.point_id}.json")
    else:
        row = recorder.record(live, point)
    if row is None:
        return False
    bisection.record(load, row["slo_met"] is True)
    return True


def _write(run: RunFolder, name: str, repeat: int, result: dict) -> None:
    document = run.read(_DOCUMENT) if run.has(_DOCUMENT) else {"contenders": {}}
    document["contenders"].setdefault(name, {})[str(repeat)] = result
    run.write(_DOCUMENT, document)

"""What the traces of a run say for themselves: does each point follow from its trace, and what was asked and given."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from wholecurve.curves.metrics import reduce_batch, reduce_prefill, reduce_trace
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.trace import RequestTrace

_REDUCE = {"decode": reduce_trace, "prefill": reduce_prefill, "batch": reduce_batch}
_TOLERANCE = 1e-9
# They rest on how many turns each session was to have, which a trace does not say.
_NOT_IN_TRACES = {"n_not_sent", "sessions_completed", "flags"}


@dataclass(frozen=True)
class PointTrace:
    """The requests behind one point.

    order: the place of its point in the study · asked: by request, (prompt tokens, output tokens that were wanted);
    where the wish was not recorded, what a completed request brought, else None · derived: the metrics computed again ·
    differs: recorded metrics that the trace does not give · missing: there is no trace · cached, prompt: tokens over
    requests that tell of a cache, None where none does · sources, outcomes: requests by what their token count rests
    on, and by how they ended.
    """

    order: int
    asked: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    derived: dict = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    missing: bool = False
    cached: int | None = None
    prompt: int | None = None
    sources: Counter = field(default_factory=Counter)
    outcomes: Counter = field(default_factory=Counter)


def read_traces(run: RunFolder, rows: dict[str, dict], plan: dict) -> dict[str, PointTrace]:
    """The trace of every point, by point id; UserError names file and line of a record that cannot be read."""
    return {point_id: _read(run, point_id, row, plan) for point_id, row in rows.items()}


def _read(run: RunFolder, point_id: str, row: dict, plan: dict) -> PointTrace:
    if not any((run.path / "traces").glob(f"{point_id}.jsonl*")):
        return PointTrace(row["order"], missing=True)
    requests = run.trace(point_id)
    derived, differs = {}, ()
    try:
        derived = _reducer(row, plan)(requests)
        differs = tuple(name for name in derived.keys() & row.keys() if not _same(derived[name], row[name]))
    except UserError as error:
        differs = (f"nothing: {error}",)
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens is not None]
    return PointTrace(
        row["order"],
        asked=_asked(requests),
        derived=derived,
        differs=tuple(sorted(differs)),
        cached=sum(r.cached_tokens for r in told) if told else None,
        prompt=sum(r.prompt_tokens for r in told) if told else None,
        sources=Counter(r.token_source for r in requests if r.token_source is not None),
        outcomes=Counter(r.outcome or ("completed" if r.completed else "failed") for r in requests),
    )


def _asked(requests: Iterable[RequestTrace]) -> dict[str, tuple[int, int | None]]:
    def wanted(request: RequestTrace) -> int | None:
        if request.wanted_tokens is not None:
            return request.wanted_tokens
        return request.output_tokens if request.completed else None

    return {request.request: (request.prompt_tokens, wanted(request)) for request in requests}


def _reducer(row: dict, plan: dict) -> Callable[[list[RequestTrace]], dict]:
    devices = {"devices": row.get("devices", 1), "device_kind": row.get("device_kind", "cpu")}
    if plan.get("kind") != "serving":
        if row["workload"] not in _REDUCE:
            raise UserError(f"workload {row['workload']!r} is not one of {', '.join(_REDUCE)}")
        return lambda requests: _REDUCE[row["workload"]](requests, row["load"], **devices)
    from wholecurve.curves.serving_metrics import LAG_FIELDS, reduce_serving
    from wholecurve.curves.slo import Slo

    lag = {name: row[f"client_{name}"] for name in LAG_FIELDS if f"client_{name}" in row}
    about = {"slo": Slo.from_document(plan["slo"]) if plan.get("slo") else None, "lag": lag, **devices}
    return lambda requests: {
        name: value
        for name, value in reduce_serving(requests, row["load_kind"], row["load"], **about).items()
        if name not in _NOT_IN_TRACES
    }


def _same(derived, recorded) -> bool:
    if isinstance(derived, float) and isinstance(recorded, int | float):
        return math.isclose(derived, recorded, rel_tol=_TOLERANCE, abs_tol=1e-12)
    if isinstance(derived, dict) and isinstance(recorded, dict):
        return derived.keys() == recorded.keys() and all(_same(derived[k], recorded[k]) for k in derived)
    return derived == recorded

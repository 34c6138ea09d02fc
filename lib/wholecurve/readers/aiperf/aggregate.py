"""AIPerf's mean over repeated runs: profile_export_aiperf_aggregate.json, metric_stat -> {mean, std, ci_low, …, unit}.

The runs themselves lie beside it in profile_runs; where they do, they are read and not this file.
"""

import math
from collections.abc import Mapping

from wholecurve.errors import UserError
from wholecurve.readers.aiperf.summary import KNOWN, to_point
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect
from wholecurve.readers.record import Record

FORMAT = "AIPerf aggregate"
COUNTS = ("request_count", "error_request_count", "total_isl", "total_osl")


def recognises(content: Content) -> bool:
    """True for an object whose metrics have an interval over runs."""
    metrics = content.value.get("metrics") if isinstance(content.value, dict) else None
    return isinstance(metrics, Mapping) and any(
        isinstance(name, str) and name.startswith(KNOWN) and isinstance(of_runs, Mapping) and "ci_low" in of_runs
        for name, of_runs in metrics.items()
    )


def read(content: Content, notes: Notes) -> Found:
    """One point, the mean over the runs. UserError where the files of the runs are there to be read instead."""
    runs_folder = content.path.parent.parent / "profile_runs"
    runs = list(runs_folder.rglob("profile_export_aiperf.json"))
    if runs:
        raise UserError(
            f"{content.path}: a mean over runs, and the {len(runs)} files of runs lie in {runs_folder}; read those "
            "instead, they keep the repeats"
        )
    return collect(content.path, FORMAT, [_as_one_run(content.first, notes)], notes, to_point)


def _as_one_run(record: Record, notes: Notes) -> Record:
    n = record.count("metadata.num_successful_runs", 1)
    notes.convert(f"every number is the mean over {n} runs: one point, its repeats are not in the file", record.where)
    if record.raw("metadata.single_run") is True:
        notes.leave_out("interval over runs: single_run is true, there was only one run", record.where)
    fields: dict = {"input_config": _swept(record), "aiperf_version": record.raw("aiperf_version")}
    for flat, of_runs in record.part("metrics").fields.items():
        metric, _, stat = str(flat).rpartition("_")
        if metric and isinstance(of_runs, Mapping):
            mean = of_runs.get("mean")
            whole = metric in COUNTS and isinstance(mean, int | float) and math.isfinite(mean)
            fields.setdefault(metric, {"unit": of_runs.get("unit")})[stat] = math.floor(mean) if whole else mean
    return Record(f"{record.where}, metrics", fields)


def _swept(record: Record) -> dict:
    """The load and model of a cell of a sweep, which are all that the aggregate says of its configuration."""
    values = record.raw("metadata.variation_values")
    cells = values.items() if isinstance(values, Mapping) else ()
    swept = {str(name).rpartition(".")[2]: value for name, value in cells}
    model = record.raw("metadata.model") if record.has("metadata.model") else None
    rate = swept.get("request_rate", swept.get("rate"))
    return {"concurrency": swept.get("concurrency"), "request_rate": rate, "model": model}

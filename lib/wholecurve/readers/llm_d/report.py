"""llm-d benchmark reports, schema 0.1 and 0.2, YAML or JSON: what any of several load generators measured.

One set of names hides that the generators define them differently: what the schema calls time_per_output_token counts
from the request's start in GuideLLM, and what it calls inter_token_latency is a TPOT in GuideLLM and AIPerf but the
gap between chunks in vLLM and inference-perf. (llm-d-benchmark, benchmark_report/native_to_br0_1.py and ..._2.py.)
"""

from collections.abc import Mapping

from wholecurve.curves.gates.conditions import UNSTATED_WORKLOAD
from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, keep_percentiles
from wholecurve.readers.llm_d import scenario as llm_d_scenario
from wholecurve.readers.point import (
    check_order,
    known,
    latencies_of_statistics,
    lengths,
    with_decode_speed,
)
from wholecurve.readers.record import Record

FORMAT = "llm-d benchmark report"

MILLISECONDS = {"ms": 1.0, "s": 1000.0, "ms/token": 1.0, "s/token": 1000.0}
# Converters that name the wrong unit are off by 1000; no engine of 2026 comes near this with one user.
FASTEST_TOK_PER_S = 10_000
# Field with the TPOT, and field with the gaps between chunks, by the load generator that measured.
TPOT_AND_ITL = {
    "guidellm": ("inter_token_latency", None),
    "aiperf": ("inter_token_latency", None),
    "vllm-benchmark": ("time_per_output_token", "inter_token_latency"),
    "inferencemax": ("time_per_output_token", "inter_token_latency"),
    "inference-perf": ("time_per_output_token", "inter_token_latency"),
}


def recognises(content: Content) -> bool:
    """True for an object with a version, a scenario, and metrics (0.1) or the results of requests (0.2)."""
    if not isinstance(content.value, dict) or not {"version", "scenario"} <= set(content.value):
        return False
    return isinstance(content.value.get("metrics"), Mapping) or content.first.has("results.request_performance")


def read(content: Content, notes: Notes) -> Found:
    """The one point of the report."""
    return collect(content.path, FORMAT, content.records, notes, _point)


def _point(record: Record, notes: Notes) -> dict:
    version = _version(record)
    old = version == llm_d_scenario.OLDEST
    scenario = record.part("scenario")
    measured = record.part("metrics" if old else "results.request_performance.aggregate")
    tool = scenario.text("load.name" if old else "load.standardized.tool").lower()
    latency = _believed(_with_speed(measured.part("latency"), tool, notes), notes, record.where)
    columns = llm_d_scenario.columns(scenario, version, notes)
    load = llm_d_scenario.load(scenario, version)
    settings = [part["configuration"] for part in (columns, load) if "configuration" in part]
    point = {
        **columns,
        "workload": UNSTATED_WORKLOAD if old else _workload(scenario),
        **load,
        **({"configuration": ", ".join(settings)} if settings else {}),
        **_throughput(measured.part("throughput"), old),
        **_requests(measured.part("requests"), tool, notes),
        **latency,
    }
    _rates(record, measured, point, tool, old)
    check_order(point, record.where)
    return keep_percentiles(point, notes, record.where)


def _believed(latency: dict, notes: Notes, where: str) -> dict:
    """The latencies, or none where a speed that no server reaches shows that the units of the report are wrong."""
    speed = latency.get("decode_speed_tok_per_s", 0)
    if speed <= FASTEST_TOK_PER_S:
        return latency
    notes.leave_out(
        f"all latencies: by its units one user gets {speed:.0f} tok/s, which no server reaches; the units are wrong",
        where,
    )
    return {}


def _version(record: Record) -> str:
    version = record.raw("version")
    text = str(version).strip() if isinstance(version, str | float) else ""
    if text != llm_d_scenario.OLDEST and not text.startswith("0.2"):
        raise record.refuse("version", "0.1 or 0.2")
    return text


def _with_speed(latency: Record, tool: str, notes: Notes) -> dict:
    """Columns of latencies, by the definitions of the load generator, and the decode speed where they give one."""
    where = latency.where
    found = _percentiles(latency, "ttft", "time_to_first_token", notes) | _e2e(latency, tool, notes)
    if tool not in TPOT_AND_ITL:
        notes.leave_out(
            f"decode speed: how {tool} defines time_per_output_token and inter_token_latency is not known "
            f"(known are {', '.join(TPOT_AND_ITL)})",
            where,
        )
        return found
    tpot, itl = TPOT_AND_ITL[tool]
    notes.convert(f"{tool}'s {tpot} is taken as TPOT", where)
    if tool == "guidellm" and latency.has("time_per_output_token"):
        notes.leave_out("time_per_output_token: counted from the request's start, GuideLLM's includes the TTFT", where)
    found |= _percentiles(latency, "tpot", tpot, notes) | (_percentiles(latency, "itl", itl, notes) if itl else {})
    if "tpot_p50_ms" in found:
        return with_decode_speed(found)
    if latency.has(tpot) and _has_only_a_mean(latency.part(tpot)):
        notes.convert("decode speed is 1/mean TPOT: the report has no percentiles of it", where)
        mean_ms = latency.part(tpot).positive("mean") * _factor(latency.part(tpot))
        return found | {"decode_speed_tok_per_s": 1000 / mean_ms, "speed_from": "mean TPOT"}
    notes.leave_out(f"decode speed: {tpot} is {latency.state(tpot)}, without a p50", where)
    return found


def _percentiles(latency: Record, name: str, field: str, notes: Notes) -> dict:
    if not latency.has(field):
        return {}
    part = latency.part(field)
    return latencies_of_statistics(name, part, _factor(part), notes)


def _factor(part: Record) -> float:
    units = part.text("units")
    if units not in MILLISECONDS:
        raise UserError(f"{part.where}: units is {units!r}; one of {', '.join(MILLISECONDS)} is needed")
    return MILLISECONDS[units]


def _has_only_a_mean(part: Record) -> bool:
    return part.has("mean") and not any(name.startswith("p") and part.has(name) for name in map(str, part.fields))


def _e2e(latency: Record, tool: str, notes: Notes) -> dict:
    found = _percentiles(latency, "e2e", "request_latency", notes)
    if tool == "guidellm" and found and latency.raw("request_latency.units") == "ms":
        notes.leave_out("request_latency: in seconds by GuideLLM, called ms by llm-d's converter", latency.where)
        return {}
    return found


def _throughput(throughput: Record, old: bool) -> dict:
    if old:
        output = throughput.positive("output_tokens_per_sec")
        total = throughput.optional_positive("total_tokens_per_sec")
    else:
        output = _rate(throughput, "output_token_rate", "tokens/s")
        total = _rate(throughput, "total_token_rate", "tokens/s") if throughput.has("total_token_rate") else None
    return {"output_throughput_tok_per_s": output, **known({"logical_throughput_tok_per_s": total})}


def _rate(throughput: Record, name: str, units: str) -> float:
    part = throughput.part(name)
    if part.text("units") != units:
        raise UserError(f"{part.where}: units is {part.raw('units')!r}; {units} is needed")
    return part.positive("mean")


def _requests(requests: Record, tool: str, notes: Notes) -> dict:
    total = requests.count("total", 1)
    failed, incomplete = (requests.optional_count(name) for name in ("failures", "incomplete"))
    if tool == "aiperf" and failed:
        notes.leave_out("failures: llm-d's converter counts kinds of AIPerf's errors, not errors", requests.where)
        failed = None
    completed = total - (failed or 0) - (incomplete or 0)
    if completed < 1:
        raise UserError(f"{requests.where}: {total} requests, {failed} failed, {incomplete} incomplete; none completed")
    if incomplete:
        notes.leave_out(f"{incomplete} requests were cut off: neither completed nor failed", requests.where)
    return {
        "n_completed": completed,
        **known(
            {
                "n_failed": failed,
                "mean_input_tokens": requests.optional_positive("input_length.mean"),
                "mean_output_tokens": requests.optional_positive("output_length.mean"),
            }
        ),
    }


def _workload(scenario: Record) -> str:
    into, out = (scenario.raw(f"load.standardized.{name}_seq_len") for name in ("input", "output"))
    if not isinstance(into, Mapping) or into.get("distribution") not in ("fixed", "gaussian"):
        return UNSTATED_WORKLOAD
    into = Record(f"{scenario.where}, input_seq_len", into)
    out = Record(f"{scenario.where}, output_seq_len", out if isinstance(out, Mapping) else {})
    spread = [one.number("std_dev") if one.has("std_dev") else 0.0 for one in (into, out)]
    return lengths(into.positive("value"), out.positive("value") if out.has("value") else None, *spread)


def _rates(record: Record, measured: Record, point: dict, tool: str, old: bool) -> None:
    """Add the window, and what was in flight on average (request rate × mean E2E)."""
    # For inference-perf the report holds the time of sending, which ends before the replies do.
    if old and tool != "inference-perf" and record.has("metrics.time.duration"):
        point["window_s"] = record.part("metrics").positive("time.duration")
    throughput, latency = measured.part("throughput"), measured.part("latency")
    if "e2e_p50_ms" in point and latency.has("request_latency.mean"):
        mean_s = latency.part("request_latency").positive("mean") * _factor(latency.part("request_latency")) / 1000
        if old:
            per_s = throughput.optional_positive("requests_per_sec")
        else:
            per_s = _rate(throughput, "request_rate", "queries/s") if throughput.has("request_rate") else None
        if per_s:
            point["achieved_concurrency"] = per_s * mean_s

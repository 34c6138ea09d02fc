"""One row of InferenceX, of an aggregate file or of its dashboard, as a point."""

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes, keep_percentiles
from wholecurve.readers.inferencex.agentic import agentic_metrics
from wholecurve.readers.inferencex.configuration import load, text, workload
from wholecurve.readers.inferencex.fields import agree, has, is_agentic, needed, place, wanted
from wholecurve.readers.inferencex.gpus import Gpus, gpus_of, throughputs
from wholecurve.readers.record import Record

_PERCENTILES = {"median": "p50", "p90": "p90", "p99": "p99"}


def to_point(record: Record, notes: Notes) -> dict:
    """The point of one row, without its contender. UserError, naming the field, when the row gives none."""
    completed, failed = _counts(record)
    gpus = gpus_of(record, notes)
    point = {
        "workload": workload(record, notes),
        "load_kind": "concurrency",
        "load": load(record),
        "devices": gpus.total,
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "window": "full",
        "n_completed": completed,
        "n_failed": failed,
        "model": text(record, "model", "infmax_model_prefix") or None,
        "precision": text(record, "precision") or None,
        "hardware": text(record, "hardware", "hw") or None,
        **decode_speed(record, notes),
        **throughputs(record, gpus, notes),
        **_latencies(record, notes),
        **(agentic_metrics(record, completed, notes) if is_agentic(record) else {}),
        "power_w_per_device": _power(record, gpus, notes),
    }
    point = {name: value for name, value in point.items() if value is not None}
    if not any(name.endswith("tok_per_s") for name in point):
        raise UserError(
            f"{record.where}: neither median_tpot nor output_tput_per_gpu; a speed or a throughput is needed"
        )
    if completed is None and any("_p90_" in name or "_p99_" in name for name in point):
        notes.convert(
            "the rows do not say how many requests completed: whether p90 and p99 rest on enough is not known"
        )
    return keep_percentiles(point, notes, record.where)


def decode_speed(record: Record, notes: Notes) -> dict:
    """Median and slow-side p90 decode speed [tok/s/user] and what the first was computed from; {} where neither is."""
    made = {}
    if has(record, "median_tpot") or has(record, "median_intvty"):
        made = {"decode_speed_tok_per_s": _speed(record, "median"), "speed_from": "median TPOT"}
        notes.convert("decode speed is 1/median TPOT, which median_intvty is as well")
    elif has(record, "mean_tpot"):
        made = {"decode_speed_tok_per_s": 1 / needed(record, "mean_tpot"), "speed_from": "mean TPOT"}
        notes.convert("decode speed is 1/mean TPOT where the row has no median TPOT", record.where)
    else:
        notes.leave_out("no median_tpot, median_intvty or mean_tpot: the row has no decode speed", record.where)
    if has(record, "std_intvty"):
        notes.leave_out("std_intvty is 1/std(TPOT), which is not the spread of anything")
    slow = _slow_speed(record, notes)
    if slow is not None and slow > made.get("decode_speed_tok_per_s", slow):
        notes.leave_out("the p90 speed is above the median: it is of the fast side, or in another unit", record.where)
    elif slow is not None:
        made["decode_speed_p90_tok_per_s"] = slow
    return made


def _speed(record: Record, statistic: str) -> float:
    """1/TPOT of one statistic from the field that has it; where both have it, they must agree."""
    tpot, intvty = f"{statistic}_tpot", f"{statistic}_intvty"
    if not has(record, tpot):
        return needed(record, intvty)
    speed = 1 / needed(record, tpot)
    if has(record, intvty) and not agree(speed, needed(record, intvty)):
        raise UserError(
            f"{record.where}: {place(record, tpot)} means {speed:.6g} tok/s/user, but {place(record, intvty)} is "
            f"{needed(record, intvty):.6g}; one of them has another unit or definition"
        )
    return speed


def _slow_speed(record: Record, notes: Notes) -> float | None:
    """1/p90(TPOT). Agentic rows were also written with the p90 of 1/TPOT, the fast side, so there TPOT alone counts."""
    tpot, intvty = (wanted(record, name, notes) for name in ("p90_tpot", "p90_intvty"))
    if tpot is None and intvty is not None and is_agentic(record):
        notes.leave_out("p90_intvty without p90_tpot: of which side it is depends on the version that wrote it")
        return None
    if tpot is None and intvty is None:
        return None
    if tpot is not None and intvty is not None and not is_agentic(record) and not agree(1 / tpot, intvty):
        notes.leave_out("p90_tpot and p90_intvty contradict each other", record.where)
        return None
    notes.convert("p90 speed is 1/p90(TPOT), the slow side")
    return intvty if tpot is None else 1 / tpot


def _latencies(record: Record, notes: Notes) -> dict:
    """TTFT, TPOT, E2E and ITL percentiles [ms]; the rows hold seconds."""
    metrics = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
    if not is_agentic(record):
        metrics["itl"] = "itl"
    made = {}
    for theirs, ours in metrics.items():
        for statistic, percentile in _PERCENTILES.items():
            seconds = wanted(record, f"{statistic}_{theirs}", notes)
            if seconds is not None:
                made[f"{ours}_{percentile}_ms"] = 1000 * seconds
    if made:
        notes.convert("latencies are in seconds: times 1000 they are in ms")
    return made


def _counts(record: Record) -> tuple[int | None, int | None]:
    """Requests completed and failed, each None where the row does not say."""
    if record.raw("benchmark_outcome.status") == "failed":
        raise UserError(f"{record.where}: benchmark_outcome.status is 'failed'; a run that passed is needed")
    done = next((n for n in ("benchmark_outcome.completed", "num_requests_successful") if record.has(n)), None)
    failed = ("benchmark_outcome.failed", "request_accounting.records_error_dropped")
    return (
        record.count(done, 1) if done else None,
        next((record.count(name) for name in failed if record.has(name)), None),
    )


def _power(record: Record, gpus: Gpus, notes: Notes) -> float | None:
    """Mean power of one GPU [W], where the run's own check of the telemetry did not reject it."""
    average = wanted(record, "avg_power_w", notes)
    if average is None:
        return None
    verdict = place(record, "power_valid")
    if record.state(verdict) not in ("missing", "1"):
        notes.leave_out(f"avg_power_w: power_valid is {record.state(verdict)}", record.where)
        return None
    whole = wanted(record, "avg_total_gpu_power_w", notes)
    if whole is not None and not agree(whole, average * gpus.total):
        notes.leave_out("avg_power_w times all GPUs is not avg_total_gpu_power_w", record.where)
        return None
    notes.convert("avg_power_w is per GPU")
    return average

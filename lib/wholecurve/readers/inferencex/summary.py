"""The hand-kept summaries of InferenceX's experiments: one object of metadata and a list of results in ms."""

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes, keep_percentiles, listed_records
from wholecurve.readers.inferencex.fields import agree
from wholecurve.readers.record import Record

_LATENCIES = {
    f"{metric}_{percentile}_ms": f"{statistic}_{metric}_ms"
    for metric in ("ttft", "tpot", "itl")
    for statistic, percentile in {"median": "p50", "p90": "p90", "p99": "p99"}.items()
}


def is_summary(value: object) -> bool:
    """True for {"metadata": {…}, "results": [{"concurrency", "num_gpus", "output_tput_per_gpu", …}]}."""
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return False
    results = value.get("results")
    return isinstance(results, list) and any(isinstance(r, dict) and "output_tput_per_gpu" in r for r in results)


def summary_rows(path: str, value: dict, notes: Notes) -> list[Record]:
    """The results, each as a record; an entry that is no object is dropped and named."""
    return listed_records(path, "result", value["results"], notes)


def to_point(record: Record, metadata: Record, notes: Notes) -> dict:
    """The point of one result. UserError, naming the field, when it gives none or contradicts itself."""
    gpus, output = record.count("num_gpus", 1), record.positive("output_throughput")
    total, total_per_gpu = record.optional_positive("total_throughput"), record.optional_positive("total_tput_per_gpu")
    _check(
        record,
        "output_throughput",
        output,
        "output_tput_per_gpu × num_gpus",
        record.positive("output_tput_per_gpu") * gpus,
    )
    if total and total_per_gpu:
        _check(record, "total_throughput", total, "total_tput_per_gpu × num_gpus", total_per_gpu * gpus)
    completed, seconds = record.optional_count("completed_requests", 1), record.optional_positive("duration_s")
    tokens = {way: record.optional_count(f"total_{way}_tokens", 1) for way in ("input", "output")}
    if seconds and tokens["output"]:
        _check(record, "output_throughput", output, "total_output_tokens / duration_s", tokens["output"] / seconds)
        notes.convert("requests may end before output_len: mean_output_tokens is what they wrote")
    point = {
        "contender": _contender(metadata),
        "workload": _workload(metadata, notes),
        "load_kind": "concurrency",
        "load": record.count("concurrency", 1),
        "devices": gpus,
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "window": "full",
        "window_s": seconds,
        "decode_speed_tok_per_s": _speed(record, notes),
        "speed_from": "median TPOT",
        "output_throughput_tok_per_s": output,
        "logical_throughput_tok_per_s": total,
        "n_completed": completed,
        **{f"{way}_tokens": count for way, count in tokens.items()},
        **{f"mean_{way}_tokens": count / completed for way, count in tokens.items() if count and completed},
        **{ours: record.optional_positive(theirs) for ours, theirs in _LATENCIES.items()},
        **{name: metadata.optional_text(name) for name in ("model", "precision", "hardware")},
        "configuration": _configuration(metadata),
    }
    point = {name: value for name, value in point.items() if value is not None}
    return keep_percentiles(point, notes, record.where)


def _check(record: Record, name: str, stated: float, what: str, computed: float) -> None:
    if not agree(computed, stated):
        raise UserError(
            f"{record.where}: {name} is {stated:g} tok/s, but {what} is {computed:.6g}; "
            "one of them has another denominator or unit"
        )


def _speed(record: Record, notes: Notes) -> float:
    median, tail = record.positive("median_tpot_ms"), record.optional_positive("p99_tpot_ms")
    if tail and median > tail:
        raise UserError(
            f"{record.where}: median_tpot_ms is {median:g}, above p99_tpot_ms {tail:g}; one of them is wrong"
        )
    speed = 1000 / median
    stated, mean = record.optional_positive("interactivity"), record.optional_positive("mean_tpot_ms")
    if stated and not agree(stated, speed):
        if not (mean and agree(stated, 1000 / mean)):
            raise UserError(
                f"{record.where}: interactivity is {stated:g} tok/s/user, but median_tpot_ms means {speed:.6g}; "
                "one of them has another unit or definition"
            )
        notes.convert("interactivity is 1/mean TPOT in these summaries; decode speed is 1/median TPOT")
    return speed


def _contender(metadata: Record) -> str:
    names = [metadata.optional_text(name) for name in ("hardware", "framework", "precision")]
    return " ".join(name for name in names if name).replace(":", "_") or "InferenceX"


def _configuration(metadata: Record) -> str | None:
    tp = metadata.optional_count("tensor_parallel", 1)
    return f"tp{tp}" if tp else None


def _workload(metadata: Record, notes: Notes) -> str:
    lengths = [metadata.optional_count(f"{way}_len", 1) for way in ("input", "output")]
    if None in lengths:
        notes.leave_out("input_len or output_len is not in the metadata: the workload is not known")
        return "decode"
    return "{} in / {} out".format(*lengths)

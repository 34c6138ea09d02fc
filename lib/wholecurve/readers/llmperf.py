"""LLMPerf (ray-project): *_summary.json, flat and in seconds, and *_individual_responses.json, a list of its requests.

Its inter_token_latency_s sums the gaps of a request *with the TTFT* and divides by all tokens, so it is about E2E/n and
no TPOT; quantiles of E2E, TTFT and it do not combine to one. The requests do: TPOT = (E2E - TTFT)/(n - 1).
(token_benchmark_ray.py and ray_clients/openai_chat_completions_client.py.)
"""

from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.content import Content, read_content
from wholecurve.readers.found import Found, Notes, collect, found, keep_percentiles
from wholecurve.readers.point import (
    PERCENTILES,
    UNSTATED_DEVICES,
    check_order,
    known,
    latencies_of_requests,
    lengths,
    short_model,
    with_decode_speed,
)
from wholecurve.readers.record import Record

FORMAT = "LLMPerf"
RESPONSES_FORMAT = "LLMPerf responses"

SUMMARY = {
    "num_concurrent_requests",
    "results_mean_output_throughput_token_per_s",
    "results_num_completed_requests",
    "results_ttft_s_quantiles_p50",
    "results_end_to_end_latency_s_quantiles_p50",
}
REQUEST = {"error_code", "ttft_s", "end_to_end_latency_s", "number_output_tokens", "inter_token_latency_s"}
ENDS = ("_individual_responses.json", "_summary.json")
COUNTS_DISAGREE = "requests of the whole run are needed"


def recognises(content: Content) -> bool:
    """True for a summary or a list of requests with most of LLMPerf's names."""
    if isinstance(content.value, dict):
        return len(SUMMARY & set(content.value)) >= 3
    return isinstance(content.value, list) and len(REQUEST & set(content.first.fields)) >= 4


def summary_of(path: Path) -> Path | None:
    """The summary of the same run, which must not be counted beside its requests; None when it is not there."""
    if not path.name.endswith(ENDS[0]):
        return None
    beside = path.with_name(path.name.removesuffix(ENDS[0]) + ENDS[1])
    return beside if beside.is_file() else None


def read(content: Content, notes: Notes) -> Found:
    """One point. UserError for requests whose summary is not beside them: neither load nor time is in them."""
    if isinstance(content.value, dict):
        return collect(content.path, FORMAT, content.records, notes, _of_summary)
    return found(content.path, RESPONSES_FORMAT, [_of_responses(content, notes)], notes)


def _of_summary(record: Record, notes: Notes) -> dict:
    point = _conditions(record) | _throughput(record, notes)
    point["n_completed"] = record.count("results_num_completed_requests", 1)
    for name, field in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s")):
        point |= known(
            {
                f"{name}_{part}_ms": _ms(record, f"results_{field}_quantiles_{part}", required=part == "p50")
                for part in PERCENTILES
            }
        )
    notes.convert("latencies are in seconds", record.where)
    notes.leave_out(
        "decode speed: inter_token_latency_s includes the TTFT, and quantiles of E2E and TTFT do not combine to one of "
        "TPOT; the file of individual responses has it",
        record.where,
    )
    check_order(point, record.where)
    return keep_percentiles(point, notes, record.where)


def _ms(record: Record, name: str, required: bool) -> float | None:
    seconds = record.positive(name) if required else record.optional_positive(name)
    return None if seconds is None else 1000 * seconds


def _conditions(record: Record) -> dict:
    model = record.text("model")
    by = record.optional_text("framework")
    sizes = [record.number(name) for name in ("mean_input_tokens", "mean_output_tokens")]
    spread = [record.number(name) for name in ("stddev_input_tokens", "stddev_output_tokens")]
    return {
        **UNSTATED_DEVICES,
        "contender": " ".join([*([by] if by else []), short_model(model)]),
        "workload": lengths(*sizes, *spread),
        "load_kind": "concurrency",
        "load": record.count("num_concurrent_requests", 1),
        "model": model,
        **known(
            {
                "mean_input_tokens": record.optional_positive("results_number_input_tokens_mean"),
                "mean_output_tokens": record.optional_positive("results_number_output_tokens_mean"),
                "n_failed": record.optional_count("results_number_errors"),
            }
        ),
    }


def _throughput(record: Record, notes: Notes) -> dict:
    """Output tokens of all requests without error over the time of the test, as LLMPerf divides them."""
    per_min = record.optional_positive("results_num_completed_requests_per_min")
    e2e_s = record.optional_positive("results_end_to_end_latency_s_mean")
    completed = record.count("results_num_completed_requests", 1)
    notes.convert("output throughput is the tokens of all requests over the time of the test", record.where)
    return {
        "output_throughput_tok_per_s": record.positive("results_mean_output_throughput_token_per_s"),
        **known(
            {
                "window_s": 60 * completed / per_min if per_min else None,
                "achieved_concurrency": per_min / 60 * e2e_s if per_min and e2e_s else None,
            }
        ),
    }


def _of_responses(content: Content, notes: Notes) -> dict:
    path = content.path
    if content.skipped:
        raise UserError(f"{content.skipped[0]}; {COUNTS_DISAGREE}")
    done = [record for record in content.records if not _failed(record)]
    failed = len(content.records) - len(done)
    summary = _summary(path, len(done), failed, notes)
    if failed:
        notes.convert(f"{failed} requests with an error_code count as failed and enter no latency", str(path))
    several = [record for record in done if record.count("number_output_tokens", 1) > 1]
    if len(several) < len(done):
        notes.leave_out(f"TPOT of {len(done) - len(several)} requests: one token has none", str(path))
    notes.convert("TPOT was computed of each request as (E2E - TTFT)/(tokens - 1); times are in seconds", str(path))
    return with_decode_speed(
        {
            **_conditions(summary),
            **_throughput(summary, notes),
            "n_completed": len(done),
            "n_failed": failed,
            **latencies_of_requests("ttft", [1000 * record.positive("ttft_s") for record in done]),
            **latencies_of_requests("tpot", [_tpot_ms(record) for record in several]),
            **latencies_of_requests("e2e", [1000 * record.positive("end_to_end_latency_s") for record in done]),
        }
    )


def _failed(record: Record) -> bool:
    if "error_code" not in record.fields:
        raise record.refuse("error_code", "null or the code of an error")
    return record.raw("error_code") is not None


def _tpot_ms(record: Record) -> float:
    e2e_s, ttft_s = record.positive("end_to_end_latency_s"), record.positive("ttft_s")
    if e2e_s <= ttft_s:
        raise UserError(
            f"{record.where}: end_to_end_latency_s is {e2e_s:g}, not above ttft_s {ttft_s:g}, for several tokens; one "
            "of them is wrong"
        )
    return 1000 * (e2e_s - ttft_s) / (record.count("number_output_tokens", 2) - 1)


def _summary(path: Path, completed: int, failed: int, notes: Notes) -> Record:
    beside = summary_of(path)
    if beside is None:
        raise UserError(
            f"{path}: the requests name neither load nor time; the run's {ENDS[1]} beside this file is needed for them"
        )
    content = read_content(beside)
    if not isinstance(content.value, dict) or not recognises(content):
        raise UserError(f"{beside}: is no summary of LLMPerf; the load of {path} is needed from it")
    for state, here, field in (
        ("without error", completed, "results_num_completed_requests"),
        ("with an error", failed, "results_number_errors"),
    ):
        counted = content.first.count(field)
        if counted != here:
            raise UserError(f"{path}: {here} requests {state}, but {beside.name} counts {counted}; {COUNTS_DISAGREE}")
    notes.convert(f"load and output throughput were read from {beside.name} beside it", str(path))
    return content.first

"""GuideLLM reports, JSON or YAML: benchmarks[], each with metrics.NAME.{successful, errored, incomplete, total}.

Its inter_token_latency_ms is (last token - first token)/(tokens - 1) of each request, a TPOT, and the percentiles in
the report count a request once for every token. Its time_per_output_token_ms counts from the request's start, so it
includes the TTFT. (GuideLLM 0.8.1, schemas/base/request_stats.py and benchmark/schemas/metrics.py.)
"""

from collections.abc import Mapping, Sequence

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, keep_percentiles
from wholecurve.readers.guidellm.config import conditions
from wholecurve.readers.point import (
    UNSTATED_DEVICES,
    check_order,
    known,
    latencies_of_requests,
    latencies_of_statistics,
    with_decode_speed,
)
from wholecurve.readers.record import Record, describe

FORMAT = "GuideLLM"

KNOWN = {"requests_per_second", "request_concurrency", "output_tokens_per_second", "inter_token_latency_ms"}
# Name in the report, and its factor to milliseconds.
LATENCIES = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2e": ("request_latency", 1000.0),
}
TRIMMED = ("warmup_duration", "cooldown_duration")
# The rate distribution merges events closer than 0.1 ms, which moves its mean by far less than this.
RATE_DISAGREES = 0.05


def recognises(content: Content) -> bool:
    """True for an object whose benchmarks have metrics under GuideLLM's names."""
    benchmarks = content.value.get("benchmarks") if isinstance(content.value, dict) else None
    if not isinstance(benchmarks, list):
        return False
    metrics = [one.get("metrics") for one in benchmarks if isinstance(one, Mapping)]
    return any(isinstance(one, Mapping) and len(KNOWN & set(one)) >= 2 for one in metrics)


def read(content: Content, notes: Notes) -> Found:
    """One point per benchmark of the report."""
    report = content.first
    rows = enumerate(report.raw("benchmarks"), 1)
    benchmarks = [Record(f"{content.path}, benchmark {i}", row) for i, row in rows if isinstance(row, Mapping)]
    return collect(content.path, FORMAT, benchmarks, notes, lambda benchmark, to: _point(report, benchmark, to))


def _point(report: Record, benchmark: Record, notes: Notes) -> dict:
    where = benchmark.where
    totals = _totals(benchmark)
    metrics = benchmark.part("metrics")
    point = {
        **UNSTATED_DEVICES,
        **conditions(report, benchmark),
        **_throughput(benchmark, metrics, totals, notes),
        "n_completed": totals.count("successful", 1),
        **known({"n_failed": totals.optional_count("errored"), "window_s": benchmark.optional_positive("duration")}),
        **_tokens(metrics),
        **_latencies(benchmark, metrics, totals, notes),
    }
    check_order(point, where)
    if metrics.has("time_per_output_token_ms"):
        notes.leave_out("time_per_output_token_ms: counted from the request's start, it includes the TTFT", where)
    for name in TRIMMED:
        if benchmark.has(name) and benchmark.number(name) > 0:
            notes.convert(f"the window leaves out GuideLLM's {name}", where)
    return keep_percentiles(with_decode_speed(point), notes, where)


def _totals(benchmark: Record) -> Record:
    places = ("metrics.request_totals", "request_totals", "run_stats.requests_made")
    return benchmark.part(next((place for place in places if benchmark.has(place)), places[0]))


def _throughput(benchmark: Record, metrics: Record, totals: Record, notes: Notes) -> dict:
    """The mean over time: the median of a rate between tokens is a statistic of bursts, not tokens over the window."""
    incomplete = totals.optional_count("incomplete") or 0
    status = "total" if incomplete else "successful"
    rates = metrics.part(f"output_tokens_per_second.{status}")
    throughput = rates.positive("mean")
    _check_rate(benchmark, metrics, status, throughput)
    where = benchmark.where
    notes.convert(f"output throughput is the mean of output_tokens_per_second.{status}, not its median", where)
    if incomplete:
        notes.leave_out(
            f"{incomplete} requests were cut off at the end of the run: neither completed nor failed, they are in the "
            "throughput but in no latency",
            where,
        )
    return {
        "output_throughput_tok_per_s": throughput,
        **known(
            {
                "logical_throughput_tok_per_s": metrics.optional_positive(f"tokens_per_second.{status}.mean"),
                "achieved_concurrency": metrics.optional_positive("request_concurrency.total.mean"),
                "tokens_per_chunk": metrics.optional_positive("output_tokens_per_iteration.successful.mean"),
            }
        ),
    }


def _check_rate(benchmark: Record, metrics: Record, status: str, throughput: float) -> None:
    tokens = metrics.optional_positive(f"output_token_count.{status}.total_sum")
    window_s = benchmark.optional_positive("duration")
    if tokens and window_s and _whole(benchmark) and abs(throughput * window_s / tokens - 1) > RATE_DISAGREES:
        raise UserError(
            f"{benchmark.where}: output_tokens_per_second.{status}.mean is {throughput:.4g}, but {tokens:g} tokens in "
            f"{window_s:.4g} s are {tokens / window_s:.4g} tok/s; one of them is wrong"
        )


def _tokens(metrics: Record) -> dict:
    return known(
        {
            "mean_input_tokens": metrics.optional_positive("prompt_token_count.successful.mean"),
            "mean_output_tokens": metrics.optional_positive("output_token_count.successful.mean"),
        }
    )


def _latencies(benchmark: Record, metrics: Record, totals: Record, notes: Notes) -> dict:
    where = benchmark.where
    notes.convert("inter_token_latency_ms is (last - first token)/(tokens - 1) of each request: taken as TPOT", where)
    notes.convert("request_latency is in seconds", where)
    requests = _all_requests(benchmark, totals.count("successful"))
    if requests:
        notes.convert("percentiles were recomputed from the requests in the report, each counted once", where)
        found = _of_requests(requests)
    else:
        notes.convert(
            "percentiles are the report's; those of TPOT count a request once for each of its tokens (the report does "
            "not hold every request, or its window leaves some out)",
            where,
        )
        found = _of_report(metrics, notes)
    for name in LATENCIES:
        if f"{name}_p50_ms" not in found:
            notes.leave_out(f"{name.upper()}: 0 or missing in the report; a run without streaming has none", where)
    return found


def _of_requests(requests: Sequence[Record]) -> dict:
    found = {}
    for name, (metric, factor) in LATENCIES.items():
        # One token has no time per output token.
        having = [one for one in requests if name != "tpot" or one.count("output_tokens") > 1]
        if any(one.has(metric) and one.raw(metric) != 0 for one in having):
            found |= latencies_of_requests(name, [one.positive(metric) * factor for one in having])
    return found


def _of_report(metrics: Record, notes: Notes) -> dict:
    found = {}
    for name, (metric, factor) in LATENCIES.items():
        place = f"{metric}.successful.percentiles"
        # GuideLLM writes 0 for what no request has.
        if metrics.has(place) and metrics.raw(f"{place}.p50") != 0:
            found |= latencies_of_statistics(name, metrics.part(place), factor, notes)
    return found


def _all_requests(benchmark: Record, n: int) -> list[Record]:
    """The completed requests, when the report holds them all and its window leaves none out; else an empty list.

    With a trimmed window each metric of the report has its own requests (a TTFT counts where the first token came).
    """
    rows = benchmark.raw("requests.successful")
    if not isinstance(rows, list) or len(rows) != n or not _whole(benchmark):
        return []
    wrong = next((i for i, row in enumerate(rows, 1) if not isinstance(row, Mapping)), None)
    if wrong:
        raise UserError(f"{benchmark.where}, request {wrong}: is {describe(rows[wrong - 1])}; an object is needed")
    return [Record(f"{benchmark.where}, request {i}", row) for i, row in enumerate(rows, 1)]


def _whole(benchmark: Record) -> bool:
    return all(benchmark.raw(name) == 0 or not benchmark.has(name) for name in TRIMMED)

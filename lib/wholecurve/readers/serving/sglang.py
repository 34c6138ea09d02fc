"""Results of SGLang's serving benchmark (``python -m sglang.bench_serving``): JSON Lines, one object per run.

Fields as sglang.benchmark.serving writes them; files of 2024 have no TPOT and no concurrency.
"""

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, keep_percentiles
from wholecurve.readers.record import Record
from wholecurve.readers.serving.arrays import merged, read_arrays, requests_sent
from wholecurve.readers.serving.latency import achieved_concurrency, read_latency, read_tpot, speed_columns
from wholecurve.readers.serving.loads import read_load
from wholecurve.readers.serving.sglang_names import Names
from wholecurve.readers.serving.totals import Totals, agree, read_totals

FORMAT = "SGLang bench_serving"
# fmt: off
SIGNATURE = frozenset(
    (
        "dataset_name", "random_range_ratio", "random_input_len", "random_output_len", "sharegpt_output_len",
        "total_output_tokens_retokenized", "mean_e2e_latency_ms", "median_e2e_latency_ms",
    )
)
# fmt: on
ENOUGH = 5
OTHERS = {
    "sglang.bench_offline_throughput": frozenset({"successful_requests", "total_latency", "total_throughput"}),
    "sglang.benchmark.steady_state_serving": frozenset({"concurrency_ratio", "concurrency_threshold", "window_start"}),
}
# Output tokens by the server's usage and by tokenising the text again: special tokens and merges move them a little,
# and from the second share on one of the two counted something else.
RETOKENIZED_SAID, RETOKENIZED_REFUSED = 0.05, 0.20
# The native client spreads a chunk's gap over its tokens; the OpenAI clients keep one gap per chunk.
NATIVE = ("sglang", "sglang-native")


def recognises(content: Content) -> bool:
    """True when a row has most of the fields of a bench_serving result, or is of a benchmark beside it."""
    return any(_is_result(record) for record in content.records) or _other(content) is not None


def read(content: Content, notes: Notes) -> Found:
    """One point per line; a line that contradicts itself, or whose load is unknown, is dropped and named."""
    other = _other(content)
    if other:
        raise UserError(
            f"{content.path}: a result of {other}, which states no load level and no TPOT; use the result of "
            "sglang.bench_serving --output-file"
        )
    names = Names(content.records)
    return collect(content.path, FORMAT, content.records, notes, lambda record, said: point(record, said, names))


def point(record: Record, notes: Notes, names: Names) -> dict:
    """One row as a point. UserError where it contradicts itself or no load can be named."""
    totals = read_totals(record, notes, "total_throughput")
    notes.convert("duration ends after the client's last /server_info request")
    _check_retokenized(record, notes, totals)
    tpot, ttft = read_tpot(record, notes, totals), read_latency(record, notes, "ttft", totals)
    e2e, itl = read_latency(record, notes, "e2e_latency", totals), read_latency(record, notes, "itl", totals)
    if itl.p50 is not None:
        notes.convert("ITL is pooled over chunks or tokens of all requests: no decode speed comes from it")
    arrays = read_arrays(record, notes, totals)
    sent, counts = requests_sent(record, notes, totals, arrays)
    measured = {
        **totals.columns(),
        **tpot.columns("tpot"),
        **ttft.columns("ttft"),
        **e2e.columns("e2e"),
        **itl.columns("itl"),
        **speed_columns(tpot, notes),
        **_in_flight(record, notes, achieved_concurrency(totals, e2e, ttft, tpot, notes)),
        **_tokens_per_step(record, notes, totals),
    }
    if arrays:
        from_arrays = arrays.columns(totals, gaps_are_chunks=record.raw("backend") not in NATIVE)
        measured = merged(measured, from_arrays, notes, record.where)
    made = {
        **names.columns(record, notes),
        **read_load(record, notes, totals, sent, measured.get("achieved_concurrency")),
        **measured,
        **counts,
        **_cache_hit_rate(record, notes),
    }
    return keep_percentiles(made, notes, record.where)


def _is_result(record: Record) -> bool:
    return len(SIGNATURE & record.fields.keys()) >= ENOUGH


def _other(content: Content) -> str | None:
    return next((name for name, fields in OTHERS.items() if fields <= content.first.fields.keys()), None)


def _check_retokenized(record: Record, notes: Notes, totals: Totals) -> None:
    field = "total_output_tokens_retokenized"
    if not record.has(field):
        return
    again = record.count(field)
    apart = abs(totals.output_tokens - again) / max(totals.output_tokens, again)
    both = f"total_output_tokens is {totals.output_tokens} by the server and {again} by tokenising the text again"
    if apart > RETOKENIZED_REFUSED:
        raise UserError(
            f"{record.where}: {both}; one of them is wrong, and with it throughput and TPOT (replies that do not "
            "stream, or a count that is the maximum asked for)"
        )
    if apart > RETOKENIZED_SAID:
        notes.leave_out("the count of tokenising the text again, more than 5 % off the server's", record.where)
    notes.convert("output tokens are the server's count where it came with text, else the length that was asked for")


def _in_flight(record: Record, notes: Notes, own: dict[str, float]) -> dict[str, float]:
    """``concurrency`` of the file, Σ E2E / duration, confirmed by ``own``; ``own`` where the file has none."""
    if not record.has("concurrency"):
        return own
    try:
        stated = record.positive("concurrency")
    except UserError as error:
        notes.leave_out(str(error).removeprefix(f"{record.where}: "), record.where)
        return {}
    if own and not agree(stated, own["achieved_concurrency"]):
        notes.leave_out("concurrency, which is not mean E2E × completed / duration", record.where)
        return {}
    return {"achieved_concurrency": stated} if own else {}


def _tokens_per_step(record: Record, notes: Notes, totals: Totals) -> dict[str, float]:
    if not record.has("accept_length") or record.raw("accept_length") == 0:
        return {}
    try:
        value = record.positive("accept_length")
        if not 1 <= value <= totals.mean_output_tokens:
            raise record.refuse("accept_length", f"1 to {totals.mean_output_tokens:g}, the output tokens per request,")
    except UserError as error:
        notes.leave_out(str(error).removeprefix(f"{record.where}: "), record.where)
        return {}
    notes.convert("tokens per chunk is accept_length: tokens per decoding step, averaged since the server started")
    return {"tokens_per_chunk": value}


def _cache_hit_rate(record: Record, notes: Notes) -> dict[str, float]:
    if not record.has("cache_report"):
        return {}
    try:
        report = record.part("cache_report")
        prompt, cached = report.count("total_prompt_tokens", least=1), report.count("total_cached_tokens")
        if cached > prompt or abs(100 * cached / prompt - report.number("cache_hit_rate_pct")) > 1:
            raise UserError(
                f"{record.where}: cache_report has {cached:g} cached of {prompt:g} prompt tokens at "
                f"{report.state('cache_hit_rate_pct')} %; one of them is wrong"
            )
    except UserError as error:
        notes.leave_out(str(error).removeprefix(f"{record.where}: "), record.where)
        return {}
    notes.convert("cache hit rate is total_cached_tokens / total_prompt_tokens")
    return {"cache_hit_rate": cached / prompt}

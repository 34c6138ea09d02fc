"""Results of vLLM's serving benchmark: ``vllm bench serve``, ``vllm bench sweep`` and the older benchmark_serving.py.

One object per run, in a file of its own, appended to one file, in a sweep's summary.json (a list) or summary.csv. Also
the raw results of InferenceX, whose client is a copy of vLLM's.
"""

import math
from dataclasses import replace

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect, keep_percentiles
from wholecurve.readers.record import Record
from wholecurve.readers.serving.arrays import merged, read_arrays, requests_sent
from wholecurve.readers.serving.latency import achieved_concurrency, read_latency, read_tpot, speed_columns
from wholecurve.readers.serving.loads import read_load, read_rate
from wholecurve.readers.serving.totals import Totals, read_totals
from wholecurve.readers.serving.vllm_names import Names

FORMAT = "vLLM bench serve"
# A row with most of these is a serving result even where one of them was lost.
# fmt: off
SIGNATURE = frozenset(
    (
        "num_prompts", "tokenizer_id", "model_id", "burstiness", "max_concurrency", "completed",
        "total_output_tokens", "request_throughput", "output_throughput", "total_token_throughput"
    )
)
# fmt: on
ENOUGH = 6
OTHERS = {
    "vllm bench throughput": frozenset({"elapsed_time", "num_requests", "total_num_tokens", "tokens_per_second"}),
    "vllm bench latency": frozenset({"avg_latency", "latencies", "percentiles"}),
}
MOST_RUNS = 10**6


def recognises(content: Content) -> bool:
    """True when a row has most of the fields of a vLLM result, or is one of another vLLM benchmark without a load."""
    return any(_is_result(record) for record in content.records) or _other(content) is not None


def read(content: Content, notes: Notes) -> Found:
    """One point per run; a row that contradicts itself, or whose load is unknown, is dropped and named."""
    other = _other(content)
    if other:
        raise UserError(
            f"{content.path}: a result of {other}, which runs one batch without a load level and without TPOT; use "
            "vllm bench serve --save-result"
        )
    records = [_without_empty_cells(r) for r in content.records] if content.kind == "csv" else content.records
    names = Names(records)
    return collect(content.path, FORMAT, records, notes, lambda record, said: point(record, said, names))


def point(record: Record, notes: Notes, names: Names) -> dict:
    """One row as a point. UserError where it contradicts itself or no load can be named."""
    totals = read_totals(record, notes, "total_token_throughput")
    tpot, ttft = read_tpot(record, notes, totals), read_latency(record, notes, "ttft", totals)
    e2e, itl = read_latency(record, notes, "e2el", totals), read_latency(record, notes, "itl", totals)
    arrays = read_arrays(record, notes, totals)
    sent, counts = requests_sent(record, notes, totals, arrays)
    measured = {
        **totals.columns(),
        **tpot.columns("tpot"),
        **ttft.columns("ttft"),
        **e2e.columns("e2e"),
        **itl.columns("itl"),
        **speed_columns(tpot, notes),
    }
    if arrays:
        measured = merged(measured, arrays.columns(totals, gaps_are_chunks=True), notes, record.where)
    else:
        measured |= achieved_concurrency(totals, e2e, ttft, tpot, notes) | _tokens_per_chunk(record, notes, totals)
    _say_chunks(record, notes, measured)
    made = {
        **names.columns(record, notes),
        **read_load(record, notes, totals, sent, measured.get("achieved_concurrency")),
        **measured,
        **counts,
        **_client_lag(record, notes, totals),
        **_repeat(record),
    }
    return keep_percentiles(made, notes, record.where)


def _is_result(record: Record) -> bool:
    seen = SIGNATURE & record.fields.keys()
    return len(seen) >= ENOUGH and "total_output_tokens_retokenized" not in record.fields


def _other(content: Content) -> str | None:
    return next((name for name, fields in OTHERS.items() if fields <= content.first.fields.keys()), None)


def _without_empty_cells(record: Record) -> Record:
    return replace(record, fields={name: value for name, value in record.fields.items() if value != ""})


def _tokens_per_chunk(record: Record, notes: Notes, totals: Totals) -> dict:
    field = "spec_decode_acceptance_length"
    if not record.has(field):
        return {}
    try:
        value = record.positive(field)
        if not 1 <= value <= totals.mean_output_tokens:
            raise record.refuse(field, f"1 to {totals.mean_output_tokens:g}, the output tokens per request,")
    except UserError as error:
        notes.leave_out(str(error).removeprefix(f"{record.where}: "), record.where)
        return {}
    notes.convert("tokens per chunk is the server's acceptance length: output tokens per decoding step")
    return {"tokens_per_chunk": value}


def _say_chunks(record: Record, notes: Notes, measured: dict) -> None:
    if any(name.startswith("itl_") for name in measured):
        notes.convert("ITL is the gap between two chunks, whatever tokens they hold: no decode speed comes from it")
    if record.has("tokens_per_user"):
        notes.leave_out("tokens_per_user: it is output_throughput / max_concurrency, waiting included, and no TPOT")
    if record.has("max_output_tokens_per_s"):
        low = _is_below(record, "max_output_tokens_per_s", measured["output_throughput_tok_per_s"])
        why = ", and this peak lies below the average" if low else ""
        notes.leave_out(f"max_output_tokens_per_s: it counts chunks, not tokens{why}", record.where if low else "")


def _is_below(record: Record, name: str, value: float) -> bool:
    try:
        return record.number(name) < value
    except UserError:
        return False


def _client_lag(record: Record, notes: Notes, totals: Totals) -> dict:
    field = "median_client_queue_time_ms"
    if not record.has(field):
        return {}
    if (read_rate(record) or math.inf) == math.inf:
        notes.leave_out("client_queue_time: with all requests sent at once it is the wait for a free slot, not a lag")
        return {}
    lag = record.number(field)
    if not 0 <= lag <= 1000 * totals.duration_s:
        notes.leave_out(f"{field} is {record.state(field)} in a run of {totals.duration_s:g} s", record.where)
        return {}
    notes.convert("client lag is the median time from a request's arrival to when the client sent it")
    return {"client_lag_ms": lag}


def _repeat(record: Record) -> dict:
    if not record.has("run_number"):
        return {}
    if record.raw("run_number") in (-1, "-1"):
        raise UserError(f"{record.where}: run_number is -1, the sweep's warm-up; measured runs count from 0")
    number = record.count("run_number")
    if number >= MOST_RUNS:
        raise record.refuse("run_number", "the number of a repeat")
    return {"repeat": number + 1}

"""One static batch on SGLang: JSON Lines of bench_one_batch (no server) and bench_one_batch_server.

Every request starts together and decodes in step. Times are in seconds. A row gives a decode point (load: the batch
size) and, where it has the time of the prefill, a prefill point (load: tokens of the batch's prefill).
"""

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect
from wholecurve.readers.record import Record
from wholecurve.readers.serving.totals import agree, check_rate

FORMAT = "SGLang bench_one_batch"
SHAPE = frozenset({"batch_size", "input_len", "output_len", "run_name"})
# fmt: off
TIMES = frozenset(
    (
        "prefill_latency", "prefill_throughput", "median_decode_latency", "median_decode_throughput", "total_latency",
        "overall_throughput", "latency", "last_ttft", "output_throughput",
    )
)
# fmt: on
# Of the input, above it the prefill was partly not done.
CACHED_SHARE = 0.01
# The server's times are written with 4 decimals of a second; a difference of two below this lost its digits.
SHORTEST_S = 0.01


def recognises(content: Content) -> bool:
    """True when a row has the shape of a batch and times as these two benchmarks write them."""
    return any(
        len(SHAPE & r.fields.keys()) >= 3 and len(TIMES & r.fields.keys()) >= 2 and "duration" not in r.fields
        for r in content.records
    )


def read(content: Content, notes: Notes) -> Found:
    """A decode point and a prefill point per line, where it has them; a line that contradicts itself is dropped."""
    return collect(content.path, FORMAT, content.records, notes, _points)


def _points(record: Record, notes: Notes) -> list[dict]:
    batch, inputs, outputs = (record.count(name, least=1) for name in ("batch_size", "input_len", "output_len"))
    if any(record.has(name) for name in ("prefill_latency", "median_decode_latency", "total_latency")):
        parts = _offline(record, notes, batch, inputs, outputs)
    else:
        parts = _server(record, notes, batch, inputs, outputs)
    notes.convert("the file does not say how many devices there are: throughput is of all of them together")
    common = {
        "contender": record.optional_text("run_name") or "default",
        "devices": 1,
        "device_kind": "server",
        "source": "measured (device unstated)",
        "n_completed": batch,
    }
    if common["contender"] == "default":
        common["contender"] = "sglang"
    made = [common | part for part in parts]
    for part in made:
        cached = part.get("cache_hit_rate", 0)
        share = f" ({cached:.0%} cached)" if cached > CACHED_SHARE else ""
        decode = part["load_kind"] == "concurrency"
        part["workload"] = f"{inputs} in{share} / {outputs} out, one batch" if decode else f"prefill of {inputs} in"
    if not made:
        raise UserError(f"{record.where}: neither a decode nor a prefill time; this row holds no point")
    return made


def _offline(record: Record, notes: Notes, batch: int, inputs: int, outputs: int) -> list[dict]:
    """bench_one_batch: the engine's own steps, each between two waits for the device."""
    parts, total = [], record.positive("total_latency")
    check_rate(record, "overall_throughput", "all tokens", batch * (inputs + outputs) / total, over="total_latency")
    if record.has("median_decode_latency"):
        step = record.positive("median_decode_latency")
        throughput = record.positive("median_decode_throughput")
        check_rate(record, "median_decode_throughput", "batch_size", batch / step, over="median_decode_latency")
        notes.convert("decode speed is 1 / median decode step; throughput is batch size × that, by construction")
        parts.append(_decode(batch, 1 / step, "step time", throughput))
    if record.has("prefill_latency"):
        latency = record.positive("prefill_latency")
        check_rate(record, "prefill_throughput", "its tokens", batch * inputs / latency, over="prefill_latency")
        parts.append(_prefill(batch * inputs, record.positive("prefill_throughput"), latency))
    return parts


def _server(record: Record, notes: Notes, batch: int, inputs: int, outputs: int) -> list[dict]:
    """bench_one_batch_server: one streamed request for the whole batch; before 2025 not streamed, without last_ttft."""
    latency = record.positive("latency")
    tokens = record.optional_count("total_output_tokens", least=1) or batch * outputs
    check_rate(record, "overall_throughput", "all tokens", (batch * inputs + tokens) / latency, over="latency")
    if not record.has("last_ttft"):
        check_rate(record, "output_throughput", "output tokens", tokens / latency, over="latency")
        notes.leave_out("decode speed: the row has no last_ttft, so decode time is not known apart", record.where)
        return [_whole_run(batch, record.positive("output_throughput"), latency)]
    ttft = record.positive("last_ttft")
    if ttft > latency:
        raise UserError(f"{record.where}: last_ttft is {ttft:g} s, but latency is {latency:g} s; one of them is wrong")
    parts = _server_decode(record, notes, batch, outputs, tokens, latency - ttft)
    return parts + _server_prefill(record, notes, batch * inputs, ttft)


def _server_decode(record: Record, notes: Notes, batch: int, outputs: int, tokens: int, decode_s: float) -> list[dict]:
    cached = _cached(record) | _tokens_per_step(record, notes, outputs)
    if record.has("steady_state_output_throughput"):
        throughput, window = record.positive("steady_state_output_throughput"), record.positive("steady_state_window_s")
        if window > decode_s * 1.02 + SHORTEST_S or throughput * window > tokens * 1.02:
            raise UserError(
                f"{record.where}: steady_state_output_throughput × steady_state_window_s is {throughput * window:g} "
                f"tokens in {window:g} s, more than the row's {tokens} tokens in {decode_s:g} s; one of them is wrong"
            )
        notes.convert("throughput is of the window in which the whole batch decodes; decode speed is its batch-th part")
        return [_decode(batch, throughput / batch, "full-batch window", throughput, "steady", window) | cached]
    if outputs == 1:
        notes.leave_out("decode speed: one output token per request, all of it prefill", record.where)
        return []
    if (record.has("num_early_stopped") and record.count("num_early_stopped")) or tokens != batch * outputs:
        notes.leave_out(
            "decode speed: replies stopped early, so the batch shrank, and there is no steady-state window",
            record.where,
        )
        return []
    if decode_s < SHORTEST_S:
        notes.leave_out(f"decode speed: latency − last_ttft is below {SHORTEST_S} s, too few digits", record.where)
        return []
    check_rate(record, "output_throughput", "output tokens", tokens / decode_s, over="(latency − last_ttft)")
    notes.convert(
        "decode speed is (output_len − 1) / (latency − last_ttft); the file's output_throughput counts the first "
        "token of each reply too, which prefill made: recomputed without"
    )
    speed = (outputs - 1) / decode_s
    return [_decode(batch, speed, "decode phase", batch * speed, window_s=decode_s) | cached]


def _server_prefill(record: Record, notes: Notes, tokens: int, ttft: float) -> list[dict]:
    if not record.has("input_throughput"):
        return []
    throughput = record.positive("input_throughput")
    rate = _cached(record).get("cache_hit_rate", 0)
    if rate > CACHED_SHARE:
        notes.leave_out("input throughput: it counts tokens that came from the prefix cache", record.where)
        return []
    if not agree(throughput, tokens / ttft):
        notes.leave_out("input throughput: it is not batch_size × input_len / last_ttft", record.where)
        return []
    notes.convert("input throughput is over the time to the last first token, request handling included")
    return [_prefill(tokens, throughput, ttft)]


def _cached(record: Record) -> dict[str, float]:
    if not record.has("cache_hit_rate"):
        return {}
    rate = record.number("cache_hit_rate")
    if not 0 <= rate <= 1:
        raise record.refuse("cache_hit_rate", "a share from 0 to 1")
    return {"cache_hit_rate": rate}


def _tokens_per_step(record: Record, notes: Notes, outputs: int) -> dict[str, float]:
    if not record.has("acc_length") or record.raw("acc_length") == -1:
        return {}
    value = record.number("acc_length")
    if not 1 <= value <= outputs:
        notes.leave_out(f"acc_length is {record.state('acc_length')}: tokens per step lie between 1 and output_len")
        return {}
    notes.convert("tokens per chunk is acc_length: tokens per decoding step, averaged since the server started")
    return {"tokens_per_chunk": value}


def _decode(
    batch: int, speed: float, speed_from: str, throughput: float, window: str = "decode phase", window_s=None
) -> dict:
    columns = {
        "load_kind": "concurrency",
        "load": batch,
        "decode_speed_tok_per_s": speed,
        "speed_from": speed_from,
        "output_throughput_tok_per_s": throughput,
        "window": window,
    }
    return columns | ({"window_s": window_s} if window_s else {})


def _whole_run(batch: int, throughput: float, latency: float) -> dict:
    return {
        "load_kind": "concurrency",
        "load": batch,
        "output_throughput_tok_per_s": throughput,
        "window": "full",
        "window_s": latency,
    }


def _prefill(tokens: int, throughput: float, latency: float) -> dict:
    return {
        "load_kind": "step_tokens",
        "load": tokens,
        "input_throughput_tok_per_s": throughput,
        "window": "full",
        "window_s": latency,
    }

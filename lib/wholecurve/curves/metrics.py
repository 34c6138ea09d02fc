"""From the trace of a point to its numbers: what each request took, and what the whole run delivered."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from wholecurve.errors import UserError
from wholecurve.trace import RequestTrace


def percentile(values: Iterable[float | None], q: float) -> float | None:
    """Percentile q (0..100) by linear interpolation between order statistics, over the values that exist.

    Above the median at least three values must lie beyond it, n (100 - q)/100 >= 3, so p90 needs 30 and p99
    needs 300; with fewer the answer is None. No values give None, never 0.
    """
    known = [v for v in values if v is not None]
    if not known or (q > 50 and len(known) * (100 - q) < 300):
        return None
    return float(np.percentile(known, q))


def steady_window(requests: Sequence[RequestTrace], concurrency: int) -> tuple[float, float] | None:
    """(start, end) in seconds: last of the first-wave first tokens to the moment the last request was sent.

    The first wave is the first ``concurrency`` requests by time sent. None with fewer than 2 x concurrency
    requests, without a completed request in the first wave, or when nothing lies between start and end.
    """
    if len(requests) < 2 * concurrency:
        return None
    wave = sorted(requests, key=lambda r: r.sent_s)[:concurrency]
    firsts = [r.first_token_s for r in wave if r.completed]
    end = max(r.sent_s for r in requests)
    if not firsts or end <= max(firsts):
        return None
    return max(firsts), end


def full_window(requests: Sequence[RequestTrace]) -> tuple[float, float]:
    """(start, end) in seconds: first request scheduled to last request ended, failed ones included."""
    return min(r.scheduled_s for r in requests), max(r.end_s for r in requests)


def tokens_in(requests: Iterable[RequestTrace], window: tuple[float, float]) -> int:
    """Content tokens of completed requests that arrived in (start, end]."""
    start, end = window
    return sum(n for r in requests if r.completed for at, n in zip(r.arrivals_s, r.arrival_tokens) if start < at <= end)


def mean_in_flight(requests: Iterable[RequestTrace], window: tuple[float, float]) -> float | None:
    """Achieved concurrency, sum of E2E / window (Little's law): time in flight inside it over its length."""
    start, end = window
    if end <= start:
        return None
    return sum(max(0.0, min(r.end_s, end) - max(r.scheduled_s, start)) for r in requests) / (end - start)


def reduce_trace(
    requests: Sequence[RequestTrace], concurrency: int, devices: int = 1, device_kind: str = "cpu"
) -> dict:
    """The point-row metrics of one decode point.

    ``output_throughput_tok_per_s`` counts all devices together in the window that ``window`` names:
    "steady" where there is one, else "full"; the full-run number is kept beside it. "p90 speed" is
    1/p90(TPOT), the slow side. Failed and empty requests enter no latency and no token count, but their
    time stays in the window; ``client_lag_ms`` is the median time from scheduled to sent. What cannot be
    computed is None. Raises UserError for no requests, a bad concurrency or a contradictory trace.
    """
    _check(requests, "concurrency", concurrency, devices)
    done = [r for r in requests if r.completed]
    steady, full = steady_window(requests, concurrency), full_window(requests)
    # A steady window that no content reached says nothing about throughput; the full run then speaks.
    window = steady if steady is not None and tokens_in(done, steady) else full
    throughput = rate(tokens_in(done, window), window)
    speeds = speed_metrics(done)
    speed = speeds["decode_speed_tok_per_s"]
    tokens = sum(r.output_tokens for r in done)
    return {
        "load_kind": "concurrency",
        "load": concurrency,
        "devices": devices,
        "device_kind": device_kind,
        **speeds,
        "output_throughput_tok_per_s": throughput,
        "window": "full" if window is full else "steady",
        "window_s": window[1] - window[0],
        "output_throughput_full_tok_per_s": rate(tokens, full),
        "full_window_s": full[1] - full[0],
        **latency_metrics(done),
        "n_completed": len(done),
        "n_failed": len(requests) - len(done),
        "output_tokens": tokens,
        "tokens_per_chunk": tokens_per_chunk(done),
        "occupancy": throughput / (concurrency * speed) if throughput and speed else None,
        "achieved_concurrency": mean_in_flight(requests, window),
        "client_lag_ms": 1e3 * float(np.median([r.sent_s - r.scheduled_s for r in requests])),
    }


def speed_metrics(done: Sequence[RequestTrace]) -> dict[str, float | None]:
    """Decode speed and E2E-normalised speed of completed requests [tok/s/user], p50 and p90 of the slow side."""
    tpot = [r.tpot_s for r in done]
    per_token = [r.e2e_s / r.output_tokens for r in done]
    return {
        "decode_speed_tok_per_s": inverse(percentile(tpot, 50)),
        "decode_speed_p90_tok_per_s": inverse(percentile(tpot, 90)),
        "e2e_speed_p50_tok_per_s": inverse(percentile(per_token, 50)),
        "e2e_speed_p90_tok_per_s": inverse(percentile(per_token, 90)),
    }


def latency_metrics(done: Sequence[RequestTrace]) -> dict[str, float | None]:
    """TTFT, TPOT and E2E of completed requests in ms, each as p50, p90 and p99 where there are enough of them."""
    return {
        **latencies("ttft", [r.ttft_s for r in done]),
        **latencies("tpot", [r.tpot_s for r in done]),
        **latencies("e2e", [r.e2e_s for r in done]),
    }


def tokens_per_chunk(done: Sequence[RequestTrace]) -> float | None:
    """Content tokens over chunks with content: 1 where every token comes alone, more with speculation."""
    chunks = sum(n > 0 for r in done for n in r.arrival_tokens)
    return sum(r.output_tokens for r in done) / chunks if chunks else None


def reduce_prefill(
    requests: Sequence[RequestTrace], step_tokens: int, devices: int = 1, device_kind: str = "cpu"
) -> dict:
    """The point-row metrics of one prefill point: requests one after another, ``step_tokens`` per device
    and step.

    ``input_throughput_tok_per_s`` is the median over requests of non-cached input tokens / TTFT, all
    devices together; the pooled form, sum of tokens / sum of TTFT, is kept beside it as the full-run
    number. Cached tokens are counted apart. Raises UserError where requests overlap (their TTFT would count
    the same seconds twice), where the number of cached tokens is unknown, or where nothing is left
    uncached.
    """
    _check(requests, "step_tokens", step_tokens, devices)
    for r in requests:
        if r.cached_tokens is None or not 0 <= r.cached_tokens < r.prompt_tokens:
            raise UserError(
                f"request {r.request}: cached_tokens is {r.cached_tokens} of {r.prompt_tokens} "
                "prompt tokens; a known number below prompt_tokens is needed to count new ones"
            )
    ordered = sorted(requests, key=lambda r: r.scheduled_s)
    for before, after in pairwise(ordered):
        if after.scheduled_s < before.end_s:
            raise UserError(
                f"prefill requests {before.request} and {after.request} overlap in time; send them one after another"
            )
    done = [r for r in requests if r.completed]
    new = [r.prompt_tokens - r.cached_tokens for r in done]
    ttft = [r.ttft_s for r in done]
    return {
        "load_kind": "step_tokens",
        "load": step_tokens,
        "devices": devices,
        "device_kind": device_kind,
        "input_throughput_tok_per_s": percentile([n / t for n, t in zip(new, ttft)], 50),
        "input_throughput_full_tok_per_s": sum(new) / sum(ttft) if done else None,
        "window": "full",
        "window_s": sum(ttft) if done else None,
        **latencies("ttft", ttft),
        "n_completed": len(done),
        "n_failed": len(requests) - len(done),
        "input_tokens": sum(new),
        "cached_input_tokens": sum(r.cached_tokens for r in done),
    }


def all_decoding_window(batch: Sequence[RequestTrace]) -> tuple[float, float]:
    """(start, end) in seconds while every request of one batch decodes: last first token to first last token.

    Raises UserError where nothing lies between them: the first request had ended before the last one began to decode.
    """
    start, end = max(r.first_token_s for r in batch), min(r.last_token_s for r in batch)
    if end <= start:
        raise UserError(
            f"batch of {len(batch)} requests from {batch[0].request}: one ended before the last had its first token, "
            "so there is no time in which all of them decode; more output tokens are needed"
        )
    return start, end


def reduce_batch(
    requests: Sequence[RequestTrace], concurrency: int, devices: int = 1, device_kind: str = "cpu"
) -> dict:
    """The point-row metrics of one batch point: batches of ``concurrency`` requests that start together.

    ``requests`` are in the order of the batches, which come one after another. ``output_throughput_tok_per_s`` is
    decode throughput: tokens that arrived while all requests of a batch decoded (after the last first token, up to
    the first request's last), over the length of those windows, all batches and devices together. Decode speed is a
    request's own tokens in its batch's window over that window, median over requests; "p90 speed" is the slow side.
    ``output_throughput_full_tok_per_s`` is end to end, from the start of a batch to its last token. TPOT keeps its
    definition and so holds what the prefill of others cost. A batch with a failed request gives no decode numbers.
    Raises UserError for no requests, a count that is no multiple of ``concurrency``, batches that overlap or whose
    requests are not scheduled together, a window that does not exist, or a contradictory trace.
    """
    _check(requests, "concurrency", concurrency, devices)
    batches = _batches(requests, concurrency)
    windows, speeds, decoded = [], [], 0
    for batch in batches:
        if not all(r.completed for r in batch):
            continue
        window = all_decoding_window(batch)
        windows.append(window[1] - window[0])
        own = [tokens_in([r], window) for r in batch]
        decoded += sum(own)
        speeds += [n / windows[-1] for n in own]
    done = [r for r in requests if r.completed]
    full = sum(end - start for start, end in map(full_window, batches))
    tokens = sum(r.output_tokens for r in done)
    speed, throughput = percentile(speeds, 50), decoded / sum(windows) if windows else None
    return {
        "load_kind": "concurrency",
        "load": concurrency,
        "devices": devices,
        "device_kind": device_kind,
        "decode_speed_tok_per_s": speed,
        "decode_speed_p90_tok_per_s": inverse(percentile([1 / s if s else None for s in speeds], 90)),
        "output_throughput_tok_per_s": throughput,
        "window": "decode phase",
        "window_s": sum(windows),
        "output_throughput_full_tok_per_s": tokens / full if tokens else None,
        "full_window_s": full,
        **latency_metrics(done),
        "n_completed": len(done),
        "n_failed": len(requests) - len(done),
        "output_tokens": tokens,
        "tokens_per_chunk": tokens_per_chunk(done),
        "occupancy": throughput / (concurrency * speed) if throughput and speed else None,
        "client_lag_ms": 1e3 * float(np.median([r.sent_s - r.scheduled_s for r in requests])),
    }


def _batches(requests: Sequence[RequestTrace], concurrency: int) -> list[Sequence[RequestTrace]]:
    if len(requests) % concurrency:
        raise UserError(f"{len(requests)} requests are no whole number of batches of {concurrency}")
    batches = [requests[i : i + concurrency] for i in range(0, len(requests), concurrency)]
    for batch in batches:
        if len({r.scheduled_s for r in batch}) > 1:
            raise UserError(f"batch of {concurrency} from {batch[0].request}: its requests were not scheduled together")
    for before, after in pairwise(batches):
        if after[0].scheduled_s < max(r.end_s for r in before):
            raise UserError(
                f"batches from {before[0].request} and {after[0].request} overlap in time; send them one after another"
            )
    return batches


def _check(requests: Sequence[RequestTrace], load_name: str, load: int, devices: int) -> None:
    if not requests:
        raise UserError("the trace has no requests; a point needs at least one")
    if load < 1 or devices < 1:
        raise UserError(f"{load_name} is {load} and devices {devices}; both must be at least 1")
    for r in requests:
        r.check()


def latencies(name: str, seconds: Sequence[float | None]) -> dict[str, float | None]:
    """{name}_p50_ms, _p90_ms and _p99_ms of values in seconds; None where `percentile` gives none."""
    found = {q: percentile(seconds, q) for q in (50, 90, 99)}
    return {f"{name}_p{q}_ms": None if value is None else 1e3 * value for q, value in found.items()}


def inverse(value: float | None) -> float | None:
    """1/value; None where there is none."""
    return 1 / value if value else None


def rate(tokens: int, window: tuple[float, float]) -> float | None:
    """Tokens per second of a window; None without tokens or without time."""
    return tokens / (window[1] - window[0]) if tokens and window[1] > window[0] else None

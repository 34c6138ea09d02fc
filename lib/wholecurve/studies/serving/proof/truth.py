"""A client's traces against the server's record: what came late, and whether anything was lost or counted twice."""

from collections.abc import Sequence
from dataclasses import replace

from wholecurve.curves.metrics import percentile
from wholecurve.errors import UserError
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.trace import RequestTrace

Pair = tuple[RequestTrace, ReplyLog]


def paired(traces: Sequence[RequestTrace], replies: Sequence[ReplyLog]) -> list[Pair]:
    """Each trace with the record of its reply, by the label that the request carried: its own name.

    UserError for a reply without a label, a label that came twice (a client that sends a request again measures
    another one), and a trace that no reply belongs to.
    """
    by_label: dict[str, ReplyLog] = {}
    for reply in replies:
        if reply.label is None:
            raise UserError(f"reply {reply.number}: its request carried no label; every turn needs one in extra_body")
        if reply.label in by_label:
            raise UserError(f"request {reply.label} reached the server twice; a client sends each one once")
        by_label[reply.label] = reply
    if strangers := [trace.request for trace in traces if trace.request not in by_label]:
        raise UserError(f"request {strangers[0]} has a trace ({len(strangers)} such), and the server never saw it")
    return [(trace, by_label[trace.request]) for trace in traces]


def true_trace(pair: Pair, began_s: float) -> RequestTrace:
    """The request as the server wrote it: the trace with the moments and token counts of the record.

    ``began_s`` is second 0 of the traces on the monotonic clock.
    """
    trace, reply = pair
    moments = [moment - began_s for moment in reply.chunk_written_s]
    return replace(
        trace,
        arrivals_s=moments,
        arrival_tokens=list(reply.chunk_tokens),
        finished_s=max([trace.sent_s, *moments]),
        prompt_tokens=reply.prompt_tokens,
    )


def count_differences(pairs: Sequence[Pair]) -> dict[str, int]:
    """Token events on both sides, chunk by chunk.

    ``requests_that_differ`` compares the sequence of tokens per chunk, so that a loss in one place cannot hide behind
    a doubling in another; ``tokens_lost`` and ``tokens_doubled`` are sums over requests.
    """
    found = {"chunks": 0, "tokens": 0, "tokens_lost": 0, "tokens_doubled": 0, "requests_that_differ": 0}
    for trace, reply in pairs:
        seen, written = [tokens for tokens in trace.arrival_tokens if tokens], list(reply.chunk_tokens)
        found["chunks"] += len(written)
        found["tokens"] += sum(written)
        found["tokens_lost"] += max(0, sum(written) - sum(seen))
        found["tokens_doubled"] += max(0, sum(seen) - sum(written))
        found["requests_that_differ"] += seen != written
    return found


def deliveries_s(pairs: Sequence[Pair], began_s: float) -> list[float]:
    """Per content chunk, from the call that wrote it to the client's stamp.

    Requests whose chunks differ from the record are left out: which chunk is which is not known there.
    """
    delays = []
    for trace, reply in pairs:
        stamps = [at for at, tokens in zip(trace.arrivals_s, trace.arrival_tokens) if tokens]
        if len(stamps) == len(reply.chunk_write):
            delays += [at + began_s - written for at, written in zip(stamps, reply.chunk_written_s)]
    return delays


def spread_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """Median, p99 (from 300 values on) and extremes in milliseconds; None where there are too few."""
    found = {
        "min": min(seconds, default=None),
        "p50": percentile(seconds, 50),
        "p99": percentile(seconds, 99),
        "max": max(seconds, default=None),
    }
    return {f"{name}_ms": None if value is None else 1e3 * value for name, value in found.items()}

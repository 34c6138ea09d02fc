"""Per-request arrays of one serving run (vLLM --save-detailed, SGLang --output-details), reduced to a point's columns.

Both tools write ``ttfts`` and ``itls`` in seconds, ``output_lens`` and ``errors``, one entry per request that was sent;
a failed request stands there as 0.0, [] and 0.
"""

import math
from dataclasses import dataclass

from wholecurve.curves.metrics import percentile
from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record
from wholecurve.readers.serving.totals import AGREE, Totals, agree

NEEDED = ("ttfts", "itls", "output_lens")
# SGLang's tokens per chunk is the server's average since it started, not of this run's requests.
NOT_OF_THE_RUN = ("tokens_per_chunk",)


@dataclass(frozen=True)
class Request:
    """One completed request: seconds to the first chunk, gaps between chunks in seconds, output tokens."""

    ttft_s: float
    gaps_s: list[float]
    tokens: int

    @property
    def e2e_s(self) -> float:
        """Sent to last chunk."""
        return self.ttft_s + sum(self.gaps_s)

    @property
    def tpot_s(self) -> float | None:
        """(t_n − t_1)/(n − 1), whatever number of chunks the tokens came in; None for one token or one chunk."""
        return sum(self.gaps_s) / (self.tokens - 1) if self.tokens > 1 and self.gaps_s else None


@dataclass(frozen=True)
class Arrays:
    """The requests of one run: completed ones, and how many failed or came back empty."""

    requests: list[Request]
    n_failed: int
    n_empty: int

    def columns(self, totals: Totals, gaps_are_chunks: bool) -> dict:
        """What the arrays give of a point, in its units; too few requests for a percentile leave it out."""
        tokens, chunks = sum(r.tokens for r in self.requests), sum(1 + len(r.gaps_s) for r in self.requests)
        tpot = [r.tpot_s for r in self.requests]
        e2e = [r.e2e_s for r in self.requests]
        columns = {
            **_percentiles("ttft", [r.ttft_s for r in self.requests]),
            **_percentiles("tpot", tpot),
            **_percentiles("e2e", e2e),
            **_percentiles("itl", [gap for r in self.requests for gap in r.gaps_s]),
            "decode_speed_tok_per_s": _inverse(percentile(tpot, 50)),
            "decode_speed_p90_tok_per_s": _inverse(percentile(tpot, 90)),
            "output_throughput_tok_per_s": tokens / totals.duration_s,
            "output_tokens": tokens,
            "mean_output_tokens": tokens / len(self.requests),
            "achieved_concurrency": sum(e2e) / totals.duration_s,
            "tokens_per_chunk": tokens / chunks if gaps_are_chunks and tokens >= chunks else None,
        }
        return {name: value for name, value in columns.items() if value}


def read_arrays(record: Record, notes: Notes, totals: Totals) -> Arrays | None:
    """The row's arrays; None without them, or, with a sentence, where they contradict themselves or the counts."""
    if not all(record.has(name) for name in NEEDED):
        return None
    try:
        arrays = _parse(record, totals)
    except UserError as error:
        notes.leave_out(f"per-request arrays: {str(error).removeprefix(f'{record.where}: ')}", record.where)
        return None
    if sum(len(r.gaps_s) + 1 > r.tokens for r in arrays.requests) > len(arrays.requests) / 2:
        notes.leave_out(
            "more chunks than tokens: the client counted tokens by tokenising the text again, which finds fewer, so "
            "throughput may be too low and TPOT too high",
            record.where,
        )
    if arrays.n_empty:
        notes.leave_out(
            f"{arrays.n_empty} requests that were counted as completed but came back empty: counted as failed",
            record.where,
        )
    return arrays


def merged(summary: dict, arrays: dict, notes: Notes, where: str) -> dict:
    """Columns of both; where they differ by more than 2 % those of the arrays, and that is said."""
    summary = {name: value for name, value in summary.items() if name not in NOT_OF_THE_RUN or name not in arrays}
    differing = [
        f"{name} {summary[name]:.4g} in the summary, {value:.4g} from the requests"
        for name, value in arrays.items()
        if summary.get(name) and not agree(summary[name], value)
    ]
    if differing:
        notes.leave_out(f"the summary where it is not what its own requests give: {'; '.join(differing)}", where)
    taken = {name: value for name, value in arrays.items() if differing or not summary.get(name)}
    if taken:
        names = "all latencies and throughput are" if differing else "what the summary lacks is"
        notes.convert(f"{names} recomputed from the completed requests; failed ones stand in the arrays as 0")
    speed_from = {"speed_from": "median TPOT"} if "decode_speed_tok_per_s" in taken else {}
    return summary | taken | speed_from


def requests_sent(record: Record, notes: Notes, totals: Totals, arrays: Arrays | None) -> tuple[int, dict]:
    """How many requests were sent, and ``n_completed`` and ``n_failed`` of a point.

    Without a count of failures ``n_failed`` is known only where all that were asked for completed: a data set may have
    had fewer requests than num_prompts, so the rest did not necessarily fail. UserError where the counts contradict.
    """
    asked, failed = record.optional_count("num_prompts", least=1), record.optional_count("failed")
    if arrays and failed not in (None, arrays.n_failed):
        notes.leave_out(
            "failed requests: the count and the per-request errors differ",
            f"{record.where}: {failed:.10g} and {arrays.n_failed}",
        )
        return asked or totals.completed, {"n_completed": totals.completed - arrays.n_empty}
    if failed is None and arrays:
        failed = arrays.n_failed
    if asked == totals.completed and failed is None:
        failed = 0
    done = totals.completed + (failed or 0)
    if asked is not None and done > asked:
        raise UserError(
            f"{record.where}: completed is {totals.completed} and failed {failed or 0:.10g}, but num_prompts is "
            f"{asked:.10g}; one of them is wrong"
        )
    if asked is not None and done < asked:
        notes.leave_out(
            "requests that are neither completed nor counted as failed",
            f"{record.where}: {asked - done:.10g} of {asked:.10g}",
        )
    empty = arrays.n_empty if arrays else 0
    columns = {"n_completed": totals.completed - empty}
    if failed is not None:
        columns["n_failed"] = failed + empty
    return asked or done, columns


def _parse(record: Record, totals: Totals) -> Arrays:
    columns = {name: _list(record, name) for name in NEEDED}
    n = len(columns["ttfts"])
    if record.has("errors"):
        columns["errors"] = _list(record, "errors")
    for name, values in columns.items():
        if len(values) != n:
            raise UserError(f"{record.where}: {name} has {len(values)} entries, ttfts has {n}; they are not of one run")
    failed = [bool(error) for error in columns.get("errors", [])] or [not tokens for tokens in columns["output_lens"]]
    requests, empty = [], 0
    for i in range(n):
        if failed[i]:
            continue
        ttft, gaps, tokens = (columns[name][i] for name in NEEDED)
        if _zero(ttft) and _zero(tokens) and gaps == []:
            empty += 1
        else:
            requests.append(_request(f"{record.where}: request {i + 1} of the arrays", ttft, gaps, tokens, totals))
    if len(requests) + empty != totals.completed:
        raise UserError(
            f"{record.where}: they hold {len(requests) + empty} completed requests, but completed is {totals.completed}"
        )
    if not requests:
        raise UserError(f"{record.where}: all {empty} completed requests came back empty")
    tokens = sum(r.tokens for r in requests)
    if not agree(tokens, totals.output_tokens):
        raise UserError(
            f"{record.where}: output_lens sum to {tokens:.10g}, but total_output_tokens is {totals.output_tokens}, "
            "which output_throughput confirms"
        )
    return Arrays(requests, sum(failed), empty)


def _request(where: str, ttft: object, gaps: object, tokens: object, totals: Totals) -> Request:
    one = Record(where, {"ttft": ttft, "output_len": tokens})
    request = Request(one.positive("ttft"), _gaps(where, gaps), one.count("output_len", least=1))
    if any(gap < 0 for gap in request.gaps_s) or request.e2e_s > totals.duration_s * (1 + AGREE):
        raise UserError(
            f"{where}: its times do not fit into a run of {totals.duration_s:g} s (a negative gap, or longer than it)"
        )
    return request


def _gaps(where: str, gaps: object) -> list[float]:
    if not isinstance(gaps, list):
        raise UserError(f"{where}: itls is {Record(where, {'itls': gaps}).state('itls')}; a list of numbers is needed")
    # A file has millions of these: they are looked at one by one only where one is wrong.
    if set(map(type, gaps)) <= {float} and all(map(math.isfinite, gaps)):
        return gaps
    return [Record(where, {"itl": gap}).number("itl") for gap in gaps]


def _list(record: Record, name: str) -> list:
    values = record.raw(name)
    if not isinstance(values, list):
        raise record.refuse(name, "a list with one entry per request")
    return values


def _zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _percentiles(name: str, seconds: list[float | None]) -> dict[str, float | None]:
    found = {q: percentile(seconds, q) for q in (50, 90, 99)}
    return {f"{name}_p{q}_ms": 1000 * value if value is not None else None for q, value in found.items()}


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None

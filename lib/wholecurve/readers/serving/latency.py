"""Latency statistics of one serving run (vLLM, SGLang) in ms, and the decode speed that follows from TPOT."""

import math
from dataclasses import dataclass
from itertools import pairwise

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record
from wholecurve.readers.serving.totals import AGREE, Totals

STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
SECONDS_SAID = "latencies whose names lack _ms (InferenceX's copy of vLLM's client) are seconds: times 1000"


@dataclass(frozen=True)
class Latency:
    """Statistics of one latency in ms; None is not stated, or left out with a sentence."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    def columns(self, name: str) -> dict:
        """The percentiles under the names of a point, as ttft_p50_ms."""
        found = {f"{name}_{q}_ms": getattr(self, q) for q in ("p50", "p90", "p99")}
        return {column: value for column, value in found.items() if value is not None}


def read_latency(record: Record, notes: Notes, metric: str, totals: Totals) -> Latency:
    """Statistics of ``metric`` ("ttft", "itl", "e2el", "e2e_latency"); one that cannot be is left out and named."""
    values = _statistics(record, notes, metric, totals)
    if not _rising(values):
        notes.leave_out(
            f"{metric}: its percentiles do not rise ({_listed(values)}); one of them is wrong", record.where
        )
        return Latency()
    return Latency(**values)


def read_tpot(record: Record, notes: Notes, totals: Totals) -> Latency:
    """TPOT, from which decode speed comes: UserError where it is there and contradicts itself or the run.

    Empty where each reply has one token (TPOT is then undefined, whatever number stands there) or where the file has
    no TPOT; both are said.
    """
    if totals.output_tokens <= totals.completed:
        notes.leave_out("decode speed: one output token per request, so TPOT is undefined", record.where)
        return Latency()
    for statistic in ("mean", "median"):
        field, unit = _field(record, statistic, "tpot")
        if field is not None:
            _refuse_not_streamed(record, field, totals)
            _checked(record, field, unit, totals)
    values = _statistics(record, notes, "tpot", totals)
    if not _rising(values):
        raise UserError(f"{record.where}: percentiles of TPOT do not rise ({_listed(values)}); one of them is wrong")
    found = Latency(**values)
    if found.p50 is None and found.mean is None:
        notes.leave_out("decode speed: no TPOT in the file (ITL is a gap between chunks, pooled)", record.where)
    return found


def speed_columns(tpot: Latency, notes: Notes) -> dict:
    """Decode speed in tok/s of one user: 1000 / median TPOT in ms, or of the mean where there is no median."""
    columns = {}
    if tpot.p50 is not None:
        columns = {"decode_speed_tok_per_s": 1000 / tpot.p50, "speed_from": "median TPOT"}
        notes.convert("decode speed is 1 / median TPOT; this TPOT leaves the first token out")
    elif tpot.mean is not None:
        columns = {"decode_speed_tok_per_s": 1000 / tpot.mean, "speed_from": "mean TPOT"}
        notes.convert("decode speed is 1 / mean TPOT, for lack of a median; this TPOT leaves the first token out")
    if tpot.p90 is not None:
        columns["decode_speed_p90_tok_per_s"] = 1000 / tpot.p90
        notes.convert("p90 decode speed is the slow side, 1 / p90 TPOT")
    return columns


def achieved_concurrency(totals: Totals, e2e: Latency, ttft: Latency, tpot: Latency, notes: Notes) -> dict:
    """Requests in flight by Little's law, Σ E2E / duration; E2E from mean TTFT and TPOT where it is not stated."""
    mean = e2e.mean
    if mean is None and ttft.mean is not None and tpot.mean is not None:
        mean = ttft.mean + tpot.mean * (totals.mean_output_tokens - 1)
        notes.convert("achieved concurrency takes mean E2E as mean TTFT + mean TPOT × (mean output tokens − 1)")
    if mean is None:
        return {}
    return {"achieved_concurrency": mean / 1000 * totals.completed / totals.duration_s}


def _rising(values: dict[str, float]) -> bool:
    """True when p50 <= p90 <= p99, as far as they are there."""
    ordered = [values[q] for q in ("p50", "p90", "p99") if q in values]
    return all(one <= other * (1 + 1e-9) for one, other in pairwise(ordered))


def _listed(values: dict[str, float]) -> str:
    """Statistics as text: "p50 12 ms, p99 9 ms"."""
    return ", ".join(f"{name} {value:g} ms" for name, value in values.items())


def _statistics(record: Record, notes: Notes, metric: str, totals: Totals) -> dict[str, float]:
    values = {}
    for statistic in STATISTICS:
        field, unit = _field(record, statistic, metric)
        if field is None:
            continue
        try:
            values[STATISTICS[statistic]] = _checked(record, field, unit, totals)
        except UserError as error:
            notes.leave_out(str(error).removeprefix(f"{record.where}: "), record.where)
        if unit == 1000:
            notes.convert(SECONDS_SAID)
    return values


def _field(record: Record, statistic: str, metric: str) -> tuple[str | None, float]:
    for name, unit in ((f"{statistic}_{metric}_ms", 1.0), (f"{statistic}_{metric}", 1000.0)):
        if record.has(name):
            return name, unit
    return None, 1.0


def _checked(record: Record, field: str, unit: float, totals: Totals) -> float:
    value, run_ms = record.positive(field) * unit, 1000 * totals.duration_s
    # A median request of mean length: twice the run leaves room for lengths that are skewed, not for a wrong unit.
    whole = value * (totals.mean_output_tokens - 1) / 2 if field.startswith("median_tpot") else value
    if max(value, whole) > run_ms * (1 + AGREE):
        raise UserError(
            f"{record.where}: {field} means {value:g} ms, which does not fit into a run of {totals.duration_s:g} s"
        )
    return value


def _refuse_not_streamed(record: Record, field: str, totals: Totals) -> None:
    value = record.number(field)
    if value <= 0:
        state = "negative zero" if value == 0 and math.copysign(1, value) < 0 else record.state(field)
        raise UserError(
            f"{record.where}: {field} is {state} with {totals.mean_output_tokens:.3g} output tokens per request: "
            "the replies did not arrive as a stream, so decode speed was not measured"
        )

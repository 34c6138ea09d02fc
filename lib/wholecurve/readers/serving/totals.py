"""Counts and throughputs of one serving run (vLLM, SGLang): numbers that follow from each other must agree."""

from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

# Two numbers of one file that should be equal: rounding and a clock read twice stay far below this.
AGREE = 0.02


@dataclass(frozen=True)
class Totals:
    """What a run delivered, over its full duration; None is not stated or contradicted by another field."""

    completed: int
    duration_s: float
    output_tokens: int
    output_throughput_tok_per_s: float
    mean_input_tokens: float | None
    logical_throughput_tok_per_s: float | None

    @property
    def mean_output_tokens(self) -> float:
        """Output tokens per completed request."""
        return self.output_tokens / self.completed

    def columns(self) -> dict:
        """These numbers under the names of a point."""
        columns = {
            "output_throughput_tok_per_s": self.output_throughput_tok_per_s,
            "logical_throughput_tok_per_s": self.logical_throughput_tok_per_s,
            "window": "full",
            "window_s": self.duration_s,
            "n_completed": self.completed,
            "output_tokens": self.output_tokens,
            "mean_input_tokens": self.mean_input_tokens,
            "mean_output_tokens": self.mean_output_tokens,
        }
        return {name: value for name, value in columns.items() if value is not None}


def read_totals(record: Record, notes: Notes, total_throughput: str) -> Totals:
    """The totals of a row; UserError for one that is missing, or that another field of the row contradicts.

    ``total_throughput`` is the name under which the tool writes input and output tokens together, per second.
    """
    completed = record.count("completed")
    if completed == 0:
        asked = record.optional_count("num_prompts")
        of = f" of {asked}" if asked else ""
        raise UserError(f"{record.where}: 0{of} requests completed, so there is nothing to measure")
    duration = record.positive("duration")
    tokens = record.count("total_output_tokens", least=1)
    if tokens < completed:
        raise UserError(
            f"{record.where}: completed is {completed:.10g}, but total_output_tokens is {tokens:.10g}; a completed "
            "request has at least one"
        )
    throughput = record.positive("output_throughput")
    check_rate(record, "output_throughput", "total_output_tokens", tokens / duration)
    if record.has("request_throughput"):
        record.positive("request_throughput")
        check_rate(record, "request_throughput", "completed", completed / duration)
    notes.convert("output_throughput is over the whole run, ramp-up and drain included")
    mean_input, logical = _input(record, notes, tokens, duration, completed, total_throughput)
    return Totals(completed, duration, tokens, throughput, mean_input, logical)


def check_rate(record: Record, rate: str, amount: str, expected: float, over: str = "duration") -> None:
    """UserError, naming both fields, where a rate is not the amount over the time."""
    value = record.number(rate)
    if not agree(value, expected):
        raise UserError(
            f"{record.where}: {rate} is {value:g}, but {amount} / {over} is {expected:.6g}; one of them is wrong"
        )


def agree(one: float, other: float) -> bool:
    """True when two positive numbers differ by at most 2 %."""
    return abs(one - other) <= AGREE * other


def _input(record: Record, notes: Notes, tokens: int, duration: float, completed: int, total_throughput: str):
    """Mean input tokens and the throughput that counts them; None for both where the row contradicts itself."""
    if not record.has("total_input_tokens"):
        return None, None
    try:
        inputs = record.count("total_input_tokens", least=1)
        for rate, amount in ((total_throughput, inputs + tokens), ("input_throughput", inputs)):
            if record.has(rate):
                record.positive(rate)
                check_rate(record, rate, "its tokens", amount / duration)
    except UserError as error:
        notes.leave_out(f"mean input tokens and total throughput: {_reason(error, record)}", record.where)
        return None, None
    logical = record.number(total_throughput) if record.has(total_throughput) else None
    if logical:
        notes.convert(f"{total_throughput} counts input tokens, cached or not: kept as logical throughput")
    return inputs / completed, logical


def _reason(error: UserError, record: Record) -> str:
    return str(error).removeprefix(f"{record.where}: ")

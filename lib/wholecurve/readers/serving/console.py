"""The table "Serving Benchmark Result" that vLLM's and SGLang's clients print: text with two decimals, from a log.

It is read where it names its load; most do not, and are refused with what to save instead.
"""

import math
import re

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, collect
from wholecurve.readers.record import Record
from wholecurve.readers.serving import sglang, sglang_names, vllm, vllm_names

FORMAT = "printed serving result"
TITLE = "Serving Benchmark Result"
ENTRY = re.compile(r"^\s*#?\s*([^:]+?(?:\([^)]*\))?):\s+(\S+)\s*$")
CLOSED = re.compile(r"\s*#?\s*={20,}\s*")
# What vLLM's client prints before it starts.
ANNOUNCED = ("max_concurrency", "request_rate")
COUNTS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "request throughput (req/s)": "request_throughput",
    "input token throughput (tok/s)": "input_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "total token throughput (tok/s)": "total_token_throughput",
    "concurrency": "concurrency",
    "accept length": "accept_length",
    "backend": "backend",
}
LATENCY = re.compile(r"(mean|median|p90|p99) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
INSTEAD = "save the JSON instead (vllm bench serve --save-result, sglang.bench_serving --output-file)"
# Two decimals of a smaller number are off by more than 2 %.
ENOUGH_DIGITS = 0.25


def recognises(content: Content) -> bool:
    """True for a text with such a table in it."""
    return content.kind == "text" and TITLE in content.text


def read(content: Content, notes: Notes) -> Found:
    """One point per table that names its load; UserError with every reason where no table gives one."""
    return collect(content.path, FORMAT, _tables(content), notes, _point)


def _tables(content: Content) -> list[Record]:
    """One record per table, under the names that the tools use in their JSON; the load may stand before the table."""
    found, fields, inside = [], {}, False
    for number, line in enumerate(content.text.splitlines(), 1):
        if TITLE in line:
            fields, inside = dict(fields), True
            found.append(Record(f"{content.path}, line {number}", fields))
        elif inside and CLOSED.fullmatch(line):
            fields["ended"] = "yes"
            fields, inside = {}, False
        elif (entry := ENTRY.match(line)) and entry[2] != "None":
            name = _name(entry[1])
            if name and (inside or name in ANNOUNCED):
                fields[name] = entry[2]
    return found


def _name(label: str) -> str | None:
    label = " ".join(label.lower().split())
    latency = LATENCY.fullmatch(label)
    return f"{latency[1]}_{latency[2].replace(' ', '_')}_ms" if latency else COUNTS.get(label)


def _point(record: Record, notes: Notes) -> dict:
    if not record.has("ended"):
        raise UserError(f"{record.where}: the table has no closing line of '='; it is cut off")
    fields = {name: value for name, value in record.fields.items() if name != "ended"}
    table = Record(record.where, _with_digits(fields, notes, record.where))
    is_sglang = table.has("backend") or table.has("total_output_tokens_retokenized")
    problems = _problems(table)
    if problems:
        raise UserError(f"{record.where}: {'; '.join(problems)}; {INSTEAD}")
    notes.convert("numbers of a printed table have two decimals")
    try:
        if is_sglang:
            return sglang.point(table, notes, sglang_names.Names([table]))
        return vllm.point(table, notes, vllm_names.Names([table]))
    except UserError as error:
        raise UserError(f"{error}; {INSTEAD}") from None


def _problems(table: Record) -> list[str]:
    """Everything that forbids a point, so that one line says it all."""
    found = []
    if not table.has("max_concurrency") and _number(table, "request_rate", math.inf) == math.inf:
        found.append("it names neither a maximum request concurrency nor a finite request rate")
    if _number(table, "median_ttft_ms", 1) <= 0:
        completed = table.raw("completed") if table.has("completed") else "an unknown number of"
        found.append(
            f"median TTFT is {table.raw('median_ttft_ms')} ms with {completed} completed requests (empty replies)"
        )
    if _number(table, "median_tpot_ms", 1) <= 0:
        found.append(f"median TPOT is {table.raw('median_tpot_ms')} ms (replies that did not arrive as a stream)")
    tokens, again = (_number(table, name, 0) for name in ("total_output_tokens", "total_output_tokens_retokenized"))
    if again and abs(tokens - again) > sglang.RETOKENIZED_REFUSED * max(tokens, again):
        found.append(f"{tokens:.0f} generated tokens are {again:.0f} when tokenised again")
    return found


def _number(table: Record, name: str, otherwise: float) -> float:
    try:
        return table.number(name)
    except UserError:
        return otherwise


def _with_digits(fields: dict, notes: Notes, where: str) -> dict:
    """Without positive numbers that two decimals do not carry."""
    kept = {}
    for name, text in fields.items():
        if re.fullmatch(r"0\.\d\d", text) and 0 < float(text) < ENOUGH_DIGITS:
            notes.leave_out(f"{name}: {text} has too few digits", where)
        else:
            kept[name] = text
    return kept

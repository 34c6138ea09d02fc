"""Results of llama-bench (llama.cpp): JSON, JSON Lines, CSV and its printed table, with one row per test.

A pp row (n_gen 0) is prefill of one prompt, a tg row (n_prompt 0) is decode of one sequence, both at a depth of
tokens already cached. A row's samples are tests that one process ran after another.
"""

import math

from wholecurve.errors import UserError
from wholecurve.readers.contenders import distinguish, tell_steps_apart
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, found
from wholecurve.readers.llama_cpp import settings as llama_settings
from wholecurve.readers.llama_cpp import table as llama_table
from wholecurve.readers.record import Record

FORMAT = "llama-bench"
# The mean that the tool wrote and the mean of its samples differ by rounding only.
AGREES = 0.02


def recognises(content: Content) -> bool:
    """True for rows with n_prompt, n_gen and avg_ts, for its table, and for a log that stops before either."""
    if any(all(name in record.fields for name in ("n_prompt", "n_gen", "avg_ts")) for record in content.records):
        return True
    return content.kind == "text" and llama_table.is_log(content.text)


def read(content: Content, notes: Notes) -> Found:
    """The points of a file. A row that gives none is dropped and named; UserError when none does."""
    records = content.records if content.kind != "text" else llama_table.rows(content, notes)
    tests, points = [], []
    for record in records:
        try:
            points.append(_points(record, notes))
        except UserError as error:
            notes.drop(str(error))
        else:
            tests.append(record)
    _name(points, tests)
    return found(content.path, FORMAT, [point for several in points for point in several], notes)


def _points(record: Record, notes: Notes) -> list[dict]:
    """One point per sample of one test."""
    prompt, generated = record.count("n_prompt"), record.count("n_gen")
    if prompt and generated:
        raise UserError(
            f"{record.where}: n_prompt is {prompt} and n_gen {generated}, so avg_ts mixes prompt and generated tokens; "
            "a test of one of them is needed (-p or -n, not -pg)"
        )
    if not prompt and not generated:
        raise UserError(f"{record.where}: n_prompt and n_gen are 0; a test of one of them is needed")
    common = {**_common(record, notes), **(_prefill(record, notes) if prompt else _decode(record, notes))}
    column = "input_throughput_tok_per_s" if prompt else "output_throughput_tok_per_s"
    points = []
    for repeat, (speed, seconds) in enumerate(_samples(record, prompt + generated, notes), 1):
        point = {**common, "repeat": repeat, column: speed, "window_s": seconds, "within_run": True}
        if generated:
            point |= {"decode_speed_tok_per_s": speed, "speed_from": "step time"}
        points.append({name: value for name, value in point.items() if value is not None})
    return points


def _common(record: Record, notes: Notes) -> dict:
    table = llama_table.devices(record, notes)
    return {
        **(table or llama_settings.devices(record, notes)),
        "model": llama_settings.model_file(record) or llama_settings.model_type(record),
        "precision": llama_settings.precision(record),
    }


def _prefill(record: Record, notes: Notes) -> dict:
    notes.convert("load of a pp row is the tokens of one step: the least of n_prompt, n_batch and n_ubatch")
    return {
        "workload": _at_depth("prefill", record),
        "load_kind": "step_tokens",
        "load": _step_tokens(record),
        "window": "full",
        "input_tokens": record.count("n_prompt", 1),
    }


def _decode(record: Record, notes: Notes) -> dict:
    notes.convert("a tg row decodes one sequence: throughput and decode speed are one measurement, shown twice")
    return {
        "workload": _at_depth("decode", record),
        "load_kind": "concurrency",
        "load": 1,
        "window": "decode phase",
        "output_tokens": record.count("n_gen", 1),
    }


def _step_tokens(record: Record) -> int:
    """Tokens that one step of a pp row processes: a prompt is cut into pieces of n_batch, these into n_ubatch."""
    return min(record.count(name, 1) for name in ("n_prompt", *llama_settings.STEP))


def _at_depth(phase: str, record: Record) -> str:
    depth = record.optional_count("n_depth") or 0
    return f"{phase} at depth {depth}" if depth else phase


def _samples(record: Record, tokens: int, notes: Notes) -> list[tuple[float, float | None]]:
    """Speed [tok/s] and duration [s] of each sample, or the mean alone where the file has no samples."""
    mean = record.positive("avg_ts")
    if not record.has("samples_ts"):
        notes.convert(
            "the file has no samples: each row is one point, the mean of its tests, and their spread is not kept",
            record.where,
        )
        return [(mean, None)]
    speeds = _numbers(record, "samples_ts")
    if not math.isclose(sum(speeds) / len(speeds), mean, rel_tol=AGREES):
        raise UserError(
            f"{record.where}: avg_ts is {mean:g}, but the mean of samples_ts is {sum(speeds) / len(speeds):g}; "
            "the two must agree"
        )
    if len(speeds) > 1:
        notes.convert("samples_ts are the repeats: tests of one process one after another, not fresh runs")
    if not record.has("samples_ns"):
        return [(speed, None) for speed in speeds]
    seconds = [nanoseconds / 1e9 for nanoseconds in _numbers(record, "samples_ns")]
    if len(seconds) != len(speeds) or not all(
        math.isclose(tokens / time, speed, rel_tol=AGREES) for time, speed in zip(seconds, speeds)
    ):
        raise UserError(
            f"{record.where}: samples_ns and samples_ts contradict each other for {tokens} tokens; "
            "each speed must be the tokens over its time"
        )
    return list(zip(speeds, seconds))


def _numbers(record: Record, name: str) -> list[float]:
    values = record.raw(name)
    if not isinstance(values, list) or not values:
        raise record.refuse(name, "a list of numbers")
    entries = Record(f"{record.where}, {name}", {f"entry {i}": value for i, value in enumerate(values, 1)})
    return [entries.positive(entry) for entry in entries.fields]


def _name(tests: list[list[dict]], records: list[Record]) -> None:
    """Give the points of each test their contender and configuration; pp and tg rows are never on one curve."""
    for prefill in (True, False):
        rows = [i for i, points in enumerate(tests) if (points[0]["load_kind"] == "step_tokens") == prefill]
        chosen, firsts = [records[i] for i in rows], [tests[i][0] for i in rows]
        names = _prefill_names(chosen, firsts) if prefill else _decode_names(chosen)
        for i, name in zip(rows, names):
            # Along a prefill curve the step varies: it is the load and no other configuration.
            varies = llama_settings.STEP if prefill else ()
            stated = llama_settings.settings(records[i])
            described = ", ".join(text for key, text in stated.items() if key not in varies)
            for point in tests[i]:
                point |= {"contender": name, "configuration": described}


def _decode_names(records: list[Record]) -> list[str]:
    parts = [llama_settings.settings(r) | {"n_gen": f"n_gen {r.count('n_gen')}"} for r in records]
    return distinguish([llama_settings.base_name(r) for r in records], parts)


def _prefill_names(records: list[Record], points: list[dict]) -> list[str]:
    """The step is the load of a pp row, so it is in the name only where different tests have equal steps."""
    bases = [llama_settings.base_name(r) for r in records]
    settings = [llama_settings.settings(r) for r in records]
    parts = [{name: text for name, text in s.items() if name not in llama_settings.STEP} for s in settings]
    loads = [point["load"] for point in points]
    tests = [{name: r.count(name) for name in ("n_ubatch", "n_batch", "n_prompt")} for r in records]
    curves = [f"{name}, {point['workload']}" for name, point in zip(distinguish(bases, parts), points)]
    steps = tell_steps_apart(curves, loads, tests, lambda row, key: tests[row][key] == loads[row])
    return distinguish(bases, [part | step for part, step in zip(parts, steps)])

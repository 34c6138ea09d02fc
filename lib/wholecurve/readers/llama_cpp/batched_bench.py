"""Results of llama-batched-bench (llama.cpp): JSON Lines and its table, with one row per prompt length and batch.

A row is the prefill of ``pl`` prompts of ``pp`` tokens, then ``tg`` decode steps of all ``pl`` sequences together.
"""

import math
import re

from wholecurve.errors import UserError
from wholecurve.readers.contenders import distinguish, tell_steps_apart
from wholecurve.readers.content import Content
from wholecurve.readers.found import Found, Notes, found
from wholecurve.readers.llama_cpp.settings import device_columns
from wholecurve.readers.record import Record

FORMAT = "llama-batched-bench"
# A speed and the tokens over their time differ by rounding only; the table prints times to half a millisecond.
AGREES = 0.02
TABLE_ROUNDING_S = 0.0005

_FIELDS = ("pp", "tg", "pl", "speed_pp", "speed_tg")
_COLUMNS = {
    "PP": "pp",
    "TG": "tg",
    "B": "pl",
    "T_PP s": "t_pp",
    "S_PP t/s": "speed_pp",
    "T_TG s": "t_tg",
    "S_TG t/s": "speed_tg",
}
_SETTINGS = (
    *("n_kv_max", "n_batch", "n_ubatch", "flash_attn", "is_pp_shared", "n_gpu_layers"),
    *("n_threads", "n_threads_batch"),
)
_SETTING = re.compile(r"(\w+) = (-?\d+)", re.ASCII)


def recognises(content: Content) -> bool:
    """True for rows with pp, tg, pl, speed_pp and speed_tg, and for the table with PP, TG and B."""
    if any(all(name in record.fields for name in _FIELDS) for record in content.records):
        return True
    return content.kind == "text" and any(map(_is_header, content.text.splitlines()))


def read(content: Content, notes: Notes) -> Found:
    """The points of a file: a decode and a prefill point per row. UserError when no row gives one."""
    points, rows = [], []
    for record in _table(content, notes) if content.kind == "text" else content.records:
        for to_point in (_decode, _prefill):
            try:
                point = to_point(record, notes)
            except UserError as error:
                notes.drop(str(error))
            else:
                if point:
                    points.append({name: value for name, value in point.items() if value is not None})
                    rows.append(record)
    if points:
        notes.leave_out("the tool names no model: the contender is called after the file")
        notes.leave_out("the tool does not say how many devices there are: throughput is that of the whole server")
        _name(content, points, rows)
    return found(content.path, FORMAT, points, notes)


def _decode(record: Record, notes: Notes) -> dict | None:
    """pl sequences that decode tg tokens each, on top of pp tokens."""
    prompt, generated, sequences = record.count("pp"), record.count("tg"), record.count("pl", 1)
    if generated == 0:
        return None
    if record.has("is_tg_separate") and record.count("is_tg_separate") != 0:
        raise UserError(
            f"{record.where}: is_tg_separate is {record.state('is_tg_separate')}, so its {sequences} sequences were "
            "decoded one after another; sequences that decode together are needed (without -tgs)"
        )
    if not record.has("is_tg_separate"):
        notes.convert("the file does not say whether sequences decoded together (-tgs or not): together is assumed")
    speed = _checked(record, "speed_tg", "t_tg", sequences * generated)
    notes.convert("decode speed is speed_tg/pl, the step time: throughput and speed are one measurement, shown twice")
    return {
        "workload": f"decode at depth {prompt}" if prompt else "decode",
        "load_kind": "concurrency",
        "load": sequences,
        **device_columns("server", 1, None),
        "window": "decode phase",
        "window_s": record.positive("t_tg"),
        "decode_speed_tok_per_s": speed / sequences,
        "speed_from": "step time",
        "output_throughput_tok_per_s": speed,
        "output_tokens": sequences * generated,
    }


def _prefill(record: Record, notes: Notes) -> dict | None:
    """The prompt phase; with a shared prompt (-pps) its pp tokens are processed once for all sequences."""
    prompt, sequences = record.count("pp"), record.count("pl", 1)
    if prompt == 0:
        return None
    if not record.has("is_pp_shared") or not record.has("n_ubatch"):
        notes.leave_out(
            "prefill: is_pp_shared and n_ubatch, which the tool prints above its table, are not in the file: "
            "the tokens of a step are not known"
        )
        return None
    tokens = prompt if record.count("is_pp_shared") else prompt * sequences
    speed = _checked(record, "speed_pp", "t_pp", tokens)
    notes.convert("load of a prefill point is the tokens of one step: the least of pp × pl (pp if shared) and n_ubatch")
    return {
        "workload": "prefill",
        "load_kind": "step_tokens",
        "load": min(tokens, record.count("n_batch", 1), record.count("n_ubatch", 1)),
        **device_columns("server", 1, None),
        "window": "full",
        "window_s": record.positive("t_pp"),
        "input_throughput_tok_per_s": speed,
        "input_tokens": tokens,
    }


def _checked(record: Record, name: str, time: str, tokens: int) -> float:
    """A speed of the row [tok/s]; UserError when it is not its tokens over its time."""
    speed, seconds = record.positive(name), record.positive(time)
    allowed = AGREES + (TABLE_ROUNDING_S / seconds if record.has("table") else 0)
    if not math.isclose(speed * seconds, tokens, rel_tol=allowed):
        raise UserError(
            f"{record.where}: {name} is {speed:g} tok/s, but {tokens} tokens in {time} {seconds:g} s are "
            f"{tokens / seconds:.6g}; one of them has another unit, or the prompt is shared where it says it is not"
        )
    return speed


def _name(content: Content, points: list[dict], records: list[Record]) -> None:
    """Give the points their contender and configuration; decode and prefill points are never on one curve."""
    for prefill in (True, False):
        rows = [i for i, point in enumerate(points) if (point["load_kind"] == "step_tokens") == prefill]
        bases = [f"llama.cpp {content.path.stem}"] * len(rows)
        settings = [_settings(records[i]) for i in rows]
        if prefill:
            tests = [points[i] | {"prompts": _prompts(records[i])} for i in rows]
            parts = _prefill_parts(distinguish(bases, settings), tests)
        else:
            parts = [{"tg": f"tg {records[i].count('tg')}"} for i in rows]
        names = distinguish(bases, [setting | part for setting, part in zip(settings, parts)])
        for i, setting, name in zip(rows, settings, names):
            points[i] |= {"contender": name, "configuration": ", ".join(setting.values())}


def _prefill_parts(curves: list[str], tests: list[dict]) -> list[dict[str, str]]:
    """The prompts are in the name only where different ones have steps of one size."""
    return tell_steps_apart(
        curves,
        [test["load"] for test in tests],
        [test["prompts"] for test in tests],
        lambda row, _: tests[row]["input_tokens"] == tests[row]["load"],
    )


def _settings(record: Record) -> dict[str, str]:
    return {name: f"{name} {record.state(name)}" for name in _SETTINGS if record.has(name)}


def _prompts(record: Record) -> dict[str, int]:
    """What sets the step of a prefill point; sequences that share a prompt do not."""
    sequences = {} if record.count("is_pp_shared") else {"pl": record.count("pl")}
    return sequences | {"pp": record.count("pp")}


def _table(content: Content, notes: Notes) -> list[Record]:
    """The table's rows with the names of JSON rows, and with the settings that the tool prints above it."""
    settings, header, found = {}, None, []
    for number, line in enumerate(content.text.splitlines(), 1):
        where = f"{content.path}, line {number}"
        if "n_kv_max = " in line:
            settings = dict(_SETTING.findall(line))
        elif _is_header(line):
            header = _cells(line)
        elif header and line.startswith("|") and not set(line.rstrip()) <= set("|-: "):
            cells = _cells(line)
            if len(cells) != len(header) or not line.rstrip().endswith("|"):
                notes.drop(f"{where}: {len(cells)} of {len(header)} cells; the line is cut off")
                continue
            row = {_COLUMNS.get(name, name): cell for name, cell in zip(header, cells)}
            found.append(Record(where, {**settings, **row, "table": True}))
    return found


def _is_header(line: str) -> bool:
    return line.startswith("|") and {"PP", "TG", "B", "S_PP t/s", "S_TG t/s"} <= set(_cells(line))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]

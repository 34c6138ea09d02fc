"""The table that llama-bench prints, alone or in a log: rounded means and spreads, without samples or defaults."""

import re

from wholecurve.errors import UserError
from wholecurve.readers.content import Content
from wholecurve.readers.found import Notes
from wholecurve.readers.llama_cpp.settings import device_columns
from wholecurve.readers.record import Record

# The table leaves out settings that have the tool's default, which these are (-b and -ub of llama-bench).
DEFAULTS = {"n_batch": 2048, "n_ubatch": 512}

_TEST = re.compile(r"(?:pp ?(?P<pp>\d+))?\+?(?:tg ?(?P<tg>\d+))?(?: @ d(?P<depth>\d+))?", re.ASCII)
_SPEED = re.compile(r"(?P<mean>\S+) ± (?P<spread>\S+)")
_GPUS_IN_LOG = re.compile(r"found (\d+) \w+ devices", re.ASCII | re.IGNORECASE)
_OF_THE_TOOL = re.compile(r"^(ggml_\w+: |llama_bench: |llama-bench: |INSERT INTO llama_bench )", re.MULTILINE)


def is_log(text: str) -> bool:
    """True for text with the tool's table, or a log of llama.cpp that has no result at all."""
    return any(map(_is_header, text.splitlines())) or bool(_OF_THE_TOOL.search(text))


def rows(content: Content, notes: Notes) -> list[Record]:
    """The table's rows with the names that JSON rows have. UserError for a log without any table."""
    header, found, dropped = None, [], len(notes.dropped)
    lines = content.text.splitlines()
    gpus = [int(match[1]) for match in map(_GPUS_IN_LOG.search, lines) if match]
    for number, line in enumerate(lines, 1):
        if _is_header(line):
            header = _cells(line)
            _say_defaults(header, notes)
        elif header and line.lstrip().startswith("|") and not set(line) <= set("|-: "):
            where = f"{content.path}, line {number}"
            cells = _cells(line)
            if len(cells) != len(header) or not line.rstrip().endswith("|"):
                notes.drop(f"{where}: {len(cells)} of {len(header)} cells; the line is cut off")
                continue
            found.append(_row(where, dict(zip(header, cells)), gpus))
    if not found and len(notes.dropped) == dropped:
        raise UserError(f"{content.path}: {_without_result(content.text)}")
    if not any(line.startswith("build: ") for line in lines):
        notes.convert("the table has no closing build line: the run may have ended before its last test")
    return found


def devices(record: Record, notes: Notes) -> dict | None:
    """What a row of a table ran on, from its backend and the log's count of GPUs; None for rows of other kinds."""
    if not record.has("t/s"):
        return None
    backend, gpus = record.optional_text("backend") or "", record.raw("gpus_in_log")
    if backend in ("CPU", "BLAS", "BLAS,CPU"):
        return device_columns("cpu", 1, None)
    if gpus and len(gpus) == 1 and gpus[0] > 0 and record.state("n_gpu_layers") != "0":
        notes.convert("devices is the number of GPUs that the log found")
        return device_columns("gpu", 1 if record.raw("sm") == "none" else gpus[0], None)
    notes.leave_out("the table does not say how many devices the model ran on", record.where)
    return device_columns("server", 1, None)


def _say_defaults(header: list[str], notes: Notes) -> None:
    for name, default in DEFAULTS.items():
        if name not in header:
            notes.convert(f"{name} is not in the table, so it is the default, {default}")


def _is_header(line: str) -> bool:
    cells = _cells(line)
    return line.lstrip().startswith("|") and {"model", "test", "t/s"} <= set(cells)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _row(where: str, cells: dict[str, str], gpus: list[int]) -> Record:
    test, speed = _TEST.fullmatch(cells["test"]), _SPEED.fullmatch(cells["t/s"])
    fields: dict[str, object] = {**DEFAULTS, **cells, "gpus_in_log": gpus}
    fields |= {"n_gpu_layers": fields.pop("ngl")} if "ngl" in cells else {}
    if test:
        names = {"pp": "n_prompt", "tg": "n_gen", "depth": "n_depth"}
        fields |= {ours: int(test[theirs] or 0) for theirs, ours in names.items()}
    if speed:
        fields |= {"avg_ts": speed["mean"], "stddev_ts": speed["spread"]}
    return Record(where, fields)


def _without_result(text: str) -> str:
    if "INSERT INTO llama_bench" in text:
        return "llama-bench in SQL, which is not read; write JSON Lines instead (-o jsonl)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "failed" in line.lower()] or lines
    return (
        "a log of llama.cpp without results: no JSON row, and no row of a table with model, test and t/s; the run "
        f"ended before its first test was done ({telling[-1][:120]!r})"
    )

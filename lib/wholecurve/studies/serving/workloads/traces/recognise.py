"""Which format a trace file has, told by its content."""

import json
from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.workloads.traces import azure, burstgpt, own
from wholecurve.studies.serving.workloads.traces.azure import read_azure
from wholecurve.studies.serving.workloads.traces.bailian import read_bailian
from wholecurve.studies.serving.workloads.traces.burstgpt import read_burstgpt
from wholecurve.studies.serving.workloads.traces.mooncake import WAYS, read_mooncake
from wholecurve.studies.serving.workloads.traces.own import read_own
from wholecurve.studies.serving.workloads.traces.rows import open_text
from wholecurve.studies.serving.workloads.traces.schema import Recording
from wholecurve.studies.serving.workloads.traces.sharegpt import read_sharegpt
from wholecurve.studies.serving.workloads.traces.weka import read_weka

READERS = {
    "wholecurve": read_own,
    "mooncake": read_mooncake,
    "azure": read_azure,
    "burstgpt": read_burstgpt,
    "bailian": read_bailian,
    "weka": read_weka,
}


def read_trace(path: Path, kind: str, tokenizer: Any | None = None, keep_contents: bool = False) -> Recording:
    """Read a trace of format ``kind``, "auto" to recognise it; UserError names file, row and field of what is wrong."""
    kind = recognise(path) if kind == "auto" else kind
    recording = read_sharegpt(path, tokenizer, keep_contents) if kind == "sharegpt" else READERS[kind](path)
    if not recording.sessions:
        raise UserError(f"{path}: no requests in this {kind} trace")
    return recording


def recognise(path: Path) -> str:
    """The name of the format; UserError where no known one fits."""
    if path.is_dir():
        return "weka"
    with open_text(path) as file:
        try:
            line = next((line for line in file if line.strip()), "")
        except (UnicodeDecodeError, OSError, EOFError) as error:
            raise UserError(f"{path}: not a text file, or not a whole one ({error})") from None
    if not line:
        raise UserError(f"{path}: is empty")
    if line.lstrip().startswith(("{", "[")):
        return _recognise_json(path, line)
    columns = {name.strip().strip('"') for name in line.lstrip("\ufeff").split(",")}
    for name, needed in (("azure", azure.COLUMNS), ("burstgpt", burstgpt.COLUMNS)):
        if set(needed) <= columns:
            return name
    raise _unknown(path)


def _recognise_json(path: Path, line: str) -> str:
    if line.lstrip().startswith("["):
        return "sharegpt"
    try:
        first = json.loads(line)
    except json.JSONDecodeError:
        # One object over several lines: of the known formats, only a recorded agent session is written so.
        return "weka"
    for name, fields in (
        ("bailian", {"chat_id", "turn"}),
        ("sharegpt", {"conversations"}),
        ("weka", {"requests"}),
    ):
        if fields <= set(first):
            return name
    if first.get("format") == own.FORMAT:
        return "wholecurve"
    if set(WAYS) & set(first):
        return "mooncake"
    raise _unknown(path)


def _unknown(path: Path) -> UserError:
    return UserError(f"{path}: not a trace of a known format; known are {', '.join([*READERS, 'sharegpt'])}")

"""ShareGPT conversations: a JSON list of {id, conversations: [{from, value}, …]}.

Source: the file ShareGPT_V3_unfiltered_cleaned_split.json as vLLM (benchmarks/datasets) and ai-dynamo/aiperf
(dataset/loader/sharegpt.py) read it. Those take the first question alone, or each one without what came before; here
every question is a turn whose prompt is the whole conversation up to it, recorded answers included.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.readers.record import Record
from wholecurve.studies.serving.workloads.traces.rows import json_document, json_lines
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
ROLES["system"] = "system"


def read_sharegpt(path: Path, tokenizer: Any | None, keep_contents: bool) -> Recording:
    """Each conversation as a session, in the order of the file; they have no arrivals.

    ``keep_contents``: turns hold the recorded messages. Otherwise they hold the lengths of questions alone, and
    contents are synthesised. Lengths need a tokenizer.
    """
    if tokenizer is None:
        raise UserError(f"{path}: conversations are texts, so a tokenizer is needed to count their tokens")
    sessions = [_session(number, record, tokenizer, keep_contents) for number, record in enumerate(_records(path))]
    return Recording("sharegpt", sessions)


def _records(path: Path) -> Iterator[Record]:
    if ".jsonl" in path.suffixes:
        yield from json_lines(path)
        return
    document = json_document(path)
    if not isinstance(document, list):
        raise UserError(f"{path}: holds a JSON {type(document).__name__}; a list of conversations is needed")
    for number, entry in enumerate(document):
        if not isinstance(entry, dict):
            raise UserError(f"{path}, conversation {number}: not an object")
        yield Record(f"{path}, conversation {number}", entry)


def _session(number: int, record: Record, tokenizer: Any, keep_contents: bool) -> RecordedSession:
    name = f"s{number:06d}"
    messages = _messages(record)
    counts = [len(tokenizer.encode(one["content"], add_special_tokens=False)) for one in messages]
    turns: list[RecordedTurn] = []
    begun = 0  # messages that the turn before this one ends with, its answer included
    for i, message in enumerate(messages[:-1]):
        if message["role"] != "user" or messages[i + 1]["role"] != "assistant":
            continue
        before = turns[-1] if turns else None
        turns.append(
            RecordedTurn(
                f"{name}.t{len(turns):03d}",
                counts[i + 1],
                sum(counts[: i + 1]) if keep_contents else sum(counts[begun : i + 1]),
                messages[: i + 1] if keep_contents else None,
                continues=None if keep_contents or before is None else before.turn_id,
                after=(before.turn_id,) if before else (),
                shared_tokens=sum(counts[: begun - 1]) if before and keep_contents else 0,
            )
        )
        begun = i + 2
    if not turns:
        turns = [RecordedTurn(f"{name}.t000", 0, 0, misfit="has no question that is answered")]
    return RecordedSession(name, tuple(turns), record.where)


def _messages(record: Record) -> list[dict[str, str]]:
    entries = record.raw("conversations")
    if not isinstance(entries, list):
        raise record.refuse("conversations", "a list of messages")
    messages = []
    for number, entry in enumerate(entries):
        part = Record(f"{record.where}, message {number}", entry if isinstance(entry, dict) else {})
        role = ROLES.get(part.text("from").lower())
        if role is None:
            raise part.refuse("from", f"one of {', '.join(ROLES)}")
        if not isinstance(part.raw("value"), str):
            raise part.refuse("value", "a text")
        messages.append({"role": role, "content": part.raw("value")})
    return messages

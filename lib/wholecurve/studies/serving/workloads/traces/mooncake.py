"""Mooncake traces: JSON lines with timestamp (milliseconds), input_length, output_length, hash_ids of 512-token blocks.

Source: kvcache-ai/Mooncake, FAST25-release/README.md and its traces (of the last block, the hash covers what is there:
6,758 tokens have 14 hashes). The extensions that AIPerf reads are read as well (ai-dynamo/aiperf,
docs/benchmark-modes/trace-replay.md and dataset/loader/models.py): ``session_id`` with ``delay`` (milliseconds), where
``input_length`` counts the *new* tokens of a turn; ``messages`` (the whole history) with ``tools``; ``text_input``;
``extra`` fields of the request's body.
"""

from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.readers.record import Record
from wholecurve.studies.serving.workloads.traces.rows import block_hashes, json_lines
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

BLOCK_TOKENS = 512
WAYS = ("input_length", "messages", "text_input")


def read_mooncake(path: Path) -> Recording:
    """Each row as a session of one turn; rows with one session_id as the turns of one session."""
    rows: dict[str, list[Record]] = {}
    for number, record in enumerate(json_lines(path)):
        name = record.text("session_id") if record.has("session_id") else f"s{number:06d}"
        rows.setdefault(name, []).append(record)
    return Recording("mooncake", [_session(name, records) for name, records in rows.items()], BLOCK_TOKENS)


def _session(name: str, records: list[Record]) -> RecordedSession:
    turns: list[RecordedTurn] = []
    for record in records:
        turns.append(_turn(name, record, turns[-1] if turns else None, of_several=len(records) > 1))
    start = records[0].number("timestamp") / 1000 if records[0].has("timestamp") else None
    return RecordedSession(name, tuple(turns), records[0].where, start)


def _turn(session: str, record: Record, before: RecordedTurn | None, of_several: bool) -> RecordedTurn:
    ways = [way for way in WAYS if record.has(way)]
    if len(ways) != 1:
        found = ", ".join(ways) or "none"
        raise UserError(f"{record.where}: exactly one of {', '.join(WAYS)} is needed; there is: {found}")
    for name in ("payload", "message_mode", "context_mode"):
        if record.has(name) and record.raw(name) != "history":
            raise UserError(f"{record.where}: {name} is not replayed here; rows with {', '.join(WAYS)} are")
    hashes = block_hashes(record, "hash_ids")
    if hashes and of_several:
        raise UserError(
            f"{record.where}: hash_ids beside a session_id of several rows: whether they cover the whole prompt or the "
            "new tokens is not said; leave out session_id, or hash_ids"
        )
    continues = before if before is not None and ways == ["input_length"] else None
    return RecordedTurn(
        f"{session}.t{0 if before is None else int(before.turn_id.rsplit('.t', 1)[1]) + 1:03d}",
        record.count("output_length"),
        record.count("input_length") if ways == ["input_length"] else None,
        _contents(record, ways[0]),
        hashes,
        continues=continues and continues.turn_id,
        after=(before.turn_id,) if before else (),
        delay_s=_delay_s(record),
        extra_body=_extra_body(record),
    )


def _contents(record: Record, way: str) -> str | list[dict[str, Any]] | None:
    if way == "text_input":
        return record.text(way)
    if way == "messages":
        messages = record.raw(way)
        is_chat = isinstance(messages, list) and all(isinstance(one, dict) and "role" in one for one in messages)
        if not is_chat or not messages:
            raise record.refuse(way, "a list of chat messages, each with a role,")
        return messages
    return None


def _delay_s(record: Record) -> float:
    if not record.has("delay"):
        return 0.0
    if record.number("delay") < 0:
        raise record.refuse("delay", "0 or more milliseconds")
    return record.number("delay") / 1000


def _extra_body(record: Record) -> dict[str, Any]:
    extra = dict(record.part("extra").fields) if record.has("extra") else {}
    if record.has("tools"):
        extra["tools"] = record.raw("tools")
    return extra

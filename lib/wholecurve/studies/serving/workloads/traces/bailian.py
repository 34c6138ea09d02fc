"""Bailian (Qwen) usage traces: JSON lines with chat_id, parent_chat_id, turn, timestamp (seconds), lengths, hash_ids.

Source: alibaba-edu/qwen-bailian-usagetraces-anon as described in ai-dynamo/aiperf, docs/tutorials/bailian-trace.md: a
hash stands for 16 tokens, a root has parent_chat_id -1, and every row counts the whole prompt, history included.
"""

from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.record import Record
from wholecurve.studies.serving.workloads.traces.rows import block_hashes, json_lines
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

BLOCK_TOKENS = 16
NO_PARENT = -1


def read_bailian(path: Path) -> Recording:
    """Chats that follow one another as one session; a chat whose parent is not in the file begins one."""
    rows: dict[int, Record] = {}
    for record in json_lines(path):
        chat = record.count("chat_id")
        if chat in rows:
            raise UserError(f"{record.where}: chat_id {chat} is there twice; the first is {rows[chat].where}")
        rows[chat] = record
    parents = {chat: _parent(record, rows) for chat, record in rows.items()}
    chains: dict[int, list[int]] = {}
    for chat in sorted(rows, key=lambda chat: (rows[chat].number("timestamp"), chat)):
        chains.setdefault(_root(chat, parents, rows), []).append(chat)
    sessions = [
        RecordedSession(
            f"c{root}",
            tuple(_turn(chat, parents[chat], rows) for chat in chats),
            rows[root].where,
            rows[root].number("timestamp"),
        )
        for root, chats in chains.items()
    ]
    note = (
        "a chat follows its parent after the recorded gap between their arrivals: the trace does not tell when replies "
        "ended, so its waits contain the recorded server's time"
    )
    return Recording("bailian", sessions, BLOCK_TOKENS, [note] if any(len(s.turns) > 1 for s in sessions) else [])


def _parent(record: Record, rows: dict[int, Record]) -> int | None:
    parent = record.number("parent_chat_id") if record.has("parent_chat_id") else NO_PARENT
    return int(parent) if parent != NO_PARENT and int(parent) in rows else None


def _root(chat: int, parents: dict[int, int | None], rows: dict[int, Record]) -> int:
    seen = {chat}
    while (parent := parents[chat]) is not None:
        if parent in seen:
            raise UserError(f"{rows[chat].where}: chat_id {chat} is its own ancestor")
        if rows[parent].number("timestamp") > rows[chat].number("timestamp"):
            raise UserError(f"{rows[chat].where}: chat_id {chat} comes before its parent {parent}")
        seen.add(parent)
        chat = parent
    return chat


def _turn(chat: int, parent: int | None, rows: dict[int, Record]) -> RecordedTurn:
    record = rows[chat]
    gap_s = 0.0 if parent is None else record.number("timestamp") - rows[parent].number("timestamp")
    return RecordedTurn(
        f"c{chat}",
        record.count("output_length"),
        record.count("input_length"),
        blocks=block_hashes(record, "hash_ids"),
        after=() if parent is None else (f"c{parent}",),
        delay_s=gap_s,
    )

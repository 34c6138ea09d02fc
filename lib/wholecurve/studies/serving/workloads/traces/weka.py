"""Recorded sessions of coding agents, one JSON object each, with hashes of 64-token blocks and sub-agents.

Source: callanjfox/kv-cache-tester, docs/trace_replay_tester.md, and ai-dynamo/aiperf, docs/tutorials/weka-trace.md and
dataset/loader/weka_trace_models.py (the corpora cc-traces-weka-* are in this format). ``requests`` holds calls of type
"n" or "s" with t (seconds), in, out, hash_ids, api_time and think_time, and entries of type "subagent" with requests of
their own. Sub-agents beside one another run at once after the call before them, and the next call waits for all of
them. Hashes are those of one session ("local"), or of all of them ("global").
"""

from collections.abc import Iterator
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.record import Record
from wholecurve.studies.serving.workloads.traces.rows import block_hashes, json_document, json_lines
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

BLOCK_TOKENS = 64


def read_weka(path: Path) -> Recording:
    """A file with one session, JSON lines with one each, or a folder of such files. They have no arrivals."""
    sessions: list[RecordedSession] = []
    sizes: dict[int, str] = {}
    gaps: list[str] = []
    for record in _traces(path):
        size = record.count("block_size", least=1) if record.has("block_size") else BLOCK_TOKENS
        sizes.setdefault(size, record.where)
        sessions.append(_session(record, gaps))
    if len(sizes) > 1:
        raise UserError(f"{path}: sessions with blocks of different sizes: {', '.join(map(str, sizes))} tokens")
    notes = []
    if gaps:
        notes.append(
            f"{len(gaps)} waits are gaps between the starts of calls, since neither think_time nor api_time is "
            f"recorded (the first: {gaps[0]})"
        )
    return Recording("weka", sessions, next(iter(sizes), BLOCK_TOKENS), notes)


def _traces(path: Path) -> Iterator[Record]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".json", ".jsonl", ".gz"))
        if not files:
            raise UserError(f"{path}: no .json or .jsonl files in this folder")
        for file in files:
            yield from _traces(file)
    elif ".jsonl" in path.suffixes:
        yield from json_lines(path)
    else:
        document = json_document(path)
        for number, trace in enumerate(document if isinstance(document, list) else [document]):
            where = f"{path}, session {number}" if isinstance(document, list) else str(path)
            if not isinstance(trace, dict):
                raise UserError(f"{where}: not an object; a session is an object with requests")
            yield Record(where, trace)


def _session(record: Record, gaps: list[str]) -> RecordedSession:
    name = record.text("id")
    entries = record.raw("requests")
    if not isinstance(entries, list) or not entries:
        raise record.refuse("requests", "a list of calls")
    scope = "" if record.optional_text("hash_id_scope") == "global" else name
    turns: list[RecordedTurn] = []
    before: tuple[Record, str] | None = None  # the agent's own last call
    subagents: list[str] = []
    for number, entry in enumerate(_records(record, entries)):
        if entry.raw("type") == "subagent":
            if before is None:
                raise UserError(f"{entry.where}: a sub-agent before the first call; nothing sets it off")
            subagents += _subagent(entry, f"{name}.{number:03d}", scope, turns, before, gaps)
            continue
        turn_id = f"{name}.{number:03d}"
        after = tuple(subagents) or ((before[1],) if before else ())
        delay_s = 0.0 if subagents or before is None else _wait_s(entry, before[0], gaps)
        turns.append(_turn(entry, turn_id, scope, after, delay_s))
        before, subagents = (entry, turn_id), []
    return RecordedSession(name, tuple(turns), record.where)


def _subagent(
    entry: Record, name: str, scope: str, turns: list[RecordedTurn], caller: tuple[Record, str], gaps: list[str]
) -> list[str]:
    """Append the calls of one sub-agent; returns the name of the last one, or nothing where it made none."""
    calls = entry.raw("requests")
    if not isinstance(calls, list):
        raise entry.refuse("requests", "a list of calls")
    before: Record | None = None
    after = caller[1]
    for number, call in enumerate(_records(entry, calls)):
        turn_id = f"{name}.{number:03d}"
        turns.append(_turn(call, turn_id, scope, (after,), _wait_s(call, before, gaps) if before else 0.0))
        before, after = call, turn_id
    return [after] if before else []


def _records(record: Record, entries: list) -> Iterator[Record]:
    for number, entry in enumerate(entries):
        where = f"{record.where}, request {number}"
        if not isinstance(entry, dict):
            raise UserError(f"{where}: not an object")
        yield Record(where, entry)


def _turn(record: Record, turn_id: str, scope: str, after: tuple[str, ...], delay_s: float) -> RecordedTurn:
    if record.raw("type") not in ("n", "s"):
        raise record.refuse("type", '"n", "s" or "subagent"')
    hashes = block_hashes(record, "hash_ids")
    return RecordedTurn(
        turn_id, record.count("out"), record.count("in"), blocks=hashes, scope=scope, after=after, delay_s=delay_s
    )


def _wait_s(record: Record, before: Record, gaps: list[str]) -> float:
    """From the end of a call to the start of the next: as recorded, or the gap between starts less the call itself."""
    if record.has("think_time"):
        wait = record.number("think_time")
        if wait < 0:
            raise record.refuse("think_time", "0 or more seconds")
        return wait
    gap = record.number("t") - before.number("t")
    if before.has("api_time"):
        # A call that began before the one before it had ended waits for nothing but its end.
        return max(0.0, gap - before.number("api_time"))
    gaps.append(record.where)
    return max(0.0, gap)

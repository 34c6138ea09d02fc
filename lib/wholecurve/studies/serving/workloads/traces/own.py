"""wholecurve's own format of sessions: JSON lines that hold everything a load sends, or what a recording tells of it.

The first line is ``{"format": "wholecurve sessions", "version": 1}``, with ``block_tokens`` where turns have ``blocks``
and ``notes`` (a list of texts) where there is something to say. Every further line is a session:

    {"session_id": "s1", "start_s": 0.5, "turns": [
      {"turn_id": "s1.t0", "prompt": [17, 4, 99], "output_tokens": 16},
      {"turn_id": "s1.t1", "prompt": [17, 4, 99, 5], "output_tokens": 8, "after": ["s1.t0"], "delay_s": 1.5,
       "shared_tokens": 3, "extra_body": {}}]}

``start_s``, ``after``, ``delay_s``, ``shared_tokens`` and ``extra_body`` may be left out. ``prompt`` is a list of token
ids, a text, or a list of chat messages. A recording without contents has ``prompt_tokens`` in its place: alone, with
``blocks`` (a list of hashes) and perhaps ``scope``, or with ``continues`` (see ``RecordedTurn``).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wholecurve.errors import UserError
from wholecurve.files import replacing
from wholecurve.readers.record import Record
from wholecurve.studies.serving.load.turns import Prompt, Session, Turn
from wholecurve.studies.serving.workloads.traces.rows import block_hashes, json_lines
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

FORMAT = "wholecurve sessions"
VERSION = 1
HEADER_FIELDS = {"format", "version", "block_tokens", "notes"}
SESSION_FIELDS = {"session_id", "start_s", "turns"}
TURN_FIELDS = {
    *("turn_id", "prompt", "output_tokens", "after", "delay_s", "extra_body", "shared_tokens"),
    *("prompt_tokens", "blocks", "scope", "continues"),
}


def write_sessions(path: Path, sessions: Sequence[Session]) -> None:
    """Write sessions with all their contents; the file is whole or absent."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for line in ({"format": FORMAT, "version": VERSION}, *map(_session_line, sessions)):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")


def read_sessions(path: Path) -> list[Session]:
    """Read sessions whose turns hold their prompts; UserError names file and line of what is wrong."""
    sessions = []
    for recorded in read_own(path).sessions:
        for turn in recorded.turns:
            if turn.prompt is None:
                raise UserError(
                    f"{recorded.where}, turn {turn.turn_id}: has no prompt; only a trace workload makes one"
                )
        turns = tuple(
            Turn(t.turn_id, t.prompt, t.output_tokens, t.after, t.delay_s, t.extra_body, t.shared_tokens)
            for t in recorded.turns
        )
        sessions.append(Session(recorded.session_id, turns, recorded.start_s))
    return sessions


def read_own(path: Path) -> Recording:
    """Read a file of this format, recordings without contents included."""
    lines = json_lines(path)
    header = next(lines, None)
    if header is None or header.raw("format") != FORMAT:
        raise UserError(f'{path}, line 1: must be {{"format": "{FORMAT}", "version": {VERSION}}}')
    if header.raw("version") != VERSION:
        raise UserError(f"{header.where}: version is {header.state('version')}; this reads version {VERSION}")
    _no_others(header, HEADER_FIELDS)
    sessions: list[RecordedSession] = []
    names: dict[str, str] = {}
    for record in lines:
        session = _session(record)
        for name in (session.session_id, *(turn.turn_id for turn in session.turns)):
            if names.setdefault(name, record.where) != record.where:
                raise UserError(f"{record.where}: the name {name!r} was used before, in {names[name]}")
        sessions.append(session)
    notes = header.raw("notes") if header.has("notes") else []
    return Recording("wholecurve", sessions, header.optional_count("block_tokens", least=1), list(notes))


def _session_line(session: Session) -> dict[str, Any]:
    line: dict[str, Any] = {"session_id": session.session_id}
    if session.start_s is not None:
        line["start_s"] = session.start_s
    return line | {"turns": [_turn_line(turn) for turn in session.turns]}


def _turn_line(turn: Turn) -> dict[str, Any]:
    line = {"turn_id": turn.turn_id, "prompt": turn.prompt, "output_tokens": turn.output_tokens}
    optional = {
        "after": list(turn.after),
        "delay_s": turn.delay_s,
        "shared_tokens": turn.shared_tokens,
        "extra_body": turn.extra_body,
    }
    return line | {name: value for name, value in optional.items() if value}


def _session(record: Record) -> RecordedSession:
    _no_others(record, SESSION_FIELDS)
    name = record.text("session_id")
    turns = record.raw("turns")
    if not isinstance(turns, list):
        raise record.refuse("turns", "a list of turns")
    start_s = _at_least_zero(record, "start_s") if record.has("start_s") else None
    recorded = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise UserError(f"{record.where}, turn {number}: not an object")
        recorded.append(_turn(Record(f"{record.where}, turn {number}", turn)))
    session = RecordedSession(name, tuple(recorded), record.where, start_s)
    try:
        Session(name, tuple(Turn(t.turn_id, [], t.output_tokens, t.after) for t in recorded)).check()
    except UserError as error:
        raise UserError(f"{record.where}: {error}") from None
    return session


def _turn(record: Record) -> RecordedTurn:
    _no_others(record, TURN_FIELDS)
    after = record.raw("after") if record.has("after") else []
    if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
        raise record.refuse("after", "a list of names of turns")
    if record.has("prompt") == record.has("prompt_tokens"):
        raise UserError(f"{record.where}: exactly one of prompt and prompt_tokens is needed")
    return RecordedTurn(
        record.text("turn_id"),
        record.count("output_tokens", least=1),
        record.optional_count("prompt_tokens", least=1),
        _prompt(record) if record.has("prompt") else None,
        block_hashes(record, "blocks"),
        record.optional_text("scope") or "",
        record.optional_text("continues"),
        tuple(after),
        _at_least_zero(record, "delay_s") if record.has("delay_s") else 0.0,
        dict(record.part("extra_body").fields) if record.has("extra_body") else {},
        record.count("shared_tokens") if record.has("shared_tokens") else 0,
    )


def _prompt(record: Record) -> Prompt:
    prompt = record.raw("prompt")
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt:
        if all(type(part) is int and part >= 0 for part in prompt):
            return prompt
        if all(isinstance(part, dict) and "role" in part for part in prompt):
            return prompt
    raise record.refuse("prompt", "a list of token ids, a text, or a list of chat messages, each not empty,")


def _at_least_zero(record: Record, name: str) -> float:
    if (value := record.number(name)) < 0:
        raise record.refuse(name, "0 or more seconds")
    return value


def _no_others(record: Record, known: set[str]) -> None:
    if others := sorted(set(record.fields) - known):
        raise UserError(f"{record.where}: unknown field {others[0]!r}; known are {', '.join(sorted(known))}")

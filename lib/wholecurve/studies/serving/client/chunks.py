"""What one event of a streamed answer says: text, thoughts, calls of tools, counts, an error, the end.

Both of OpenAI's forms are read: completions (`choices[].text`) and chat (`choices[].delta`). Only choice 0 counts.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from wholecurve.studies.serving.client.events import Event, quoted

DONE = b"[DONE]"


class NotAChunk(ValueError):
    """An event that is no chunk of an answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as a server reports them; None for what it does not tell."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(slots=True)
class Chunk:
    """One chunk. A role alone, an empty text, or counts alone have no content, and so no token."""

    text: str = ""
    reasoning: str = ""
    tool_text: str = ""  # names and arguments of called tools
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None

    @property
    def content(self) -> str:
        """All that the model wrote in this chunk."""
        return self.reasoning + self.text + self.tool_text


def parse_chunk(event: Event) -> Chunk:
    """The chunk in an event's data; NotAChunk, with the reason, for data that is none."""
    try:
        document = orjson.loads(event.data)
    except orjson.JSONDecodeError as error:
        if event.name == "error":
            return Chunk(error=event.data.decode("utf-8", "replace").strip() or "an error event without a text")
        raise NotAChunk(f"an event that is no JSON ({error}): {quoted(event.data)}") from None
    if not isinstance(document, dict):
        raise NotAChunk(f"an event that is no JSON object: {quoted(event.data)}")
    if event.name == "error" or document.get("error"):
        return Chunk(error=error_text(document))
    usage = parse_usage(document.get("usage"))
    choices = document.get("choices")
    if choices is None and usage is not None:
        return Chunk(usage=usage)
    if not isinstance(choices, list):
        raise NotAChunk(f"an event without choices, usage or error: {quoted(event.data)}")
    choice = _first(choices)
    if choice is None:
        return Chunk(usage=usage)
    finish_reason = _text(choice, "finish_reason") or None
    delta = choice.get("delta")
    if delta is None:
        return Chunk(text=_text(choice, "text"), finish_reason=finish_reason, usage=usage)
    if not isinstance(delta, dict):
        raise NotAChunk(f"choices[0].delta is no object: {quoted(event.data)}")
    return Chunk(
        # Some servers write a thought under both of its names.
        reasoning=_text(delta, "reasoning_content") or _text(delta, "reasoning"),
        # Together's completions write their text under both forms.
        text=(_text(delta, "content") or _text(choice, "text")) + _text(delta, "refusal"),
        tool_text=_tool_text(delta),
        finish_reason=finish_reason,
        usage=usage,
    )


def parse_usage(document: Any) -> Usage | None:
    """Counts of a `usage` object; None where there is none. What is no count is not told."""
    if not isinstance(document, dict):
        return None
    prompt, completion = document.get("prompt_tokens_details"), document.get("completion_tokens_details")
    return Usage(
        prompt_tokens=_count(document, "prompt_tokens"),
        completion_tokens=_count(document, "completion_tokens"),
        cached_tokens=_count(prompt, "cached_tokens"),
        reasoning_tokens=_first_known(_count(completion, "reasoning_tokens"), _count(document, "reasoning_tokens")),
    )


def error_text(document: Any) -> str:
    """The message of an error document in any of the forms that servers write, on one line."""
    found = document
    for name in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    text = found if isinstance(found, str) else orjson.dumps(found).decode()
    return " ".join(text.split())


def _first(choices: list) -> dict | None:
    for choice in choices:
        if not isinstance(choice, dict):
            raise NotAChunk(f"choices holds a {type(choice).__name__}, not objects")
        if choice.get("index", 0) == 0:
            return choice
    return None


def _tool_text(delta: dict) -> str:
    calls = delta.get("tool_calls") or []
    if not isinstance(calls, list):
        raise NotAChunk("delta.tool_calls is no list")
    if legacy := delta.get("function_call"):
        calls = [*calls, {"function": legacy}]
    parts = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if function is None:
            continue
        if not isinstance(function, dict):
            raise NotAChunk("delta.tool_calls[].function is no object")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = orjson.dumps(arguments).decode()
        parts.append(_text(function, "name") + _text({"arguments": arguments}, "arguments"))
    return "".join(parts)


def _text(document: dict, name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise NotAChunk(f"{name} is a {type(value).__name__}, not a text")
    return value


def _first_known(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _count(document: Any, name: str) -> int | None:
    value = document.get(name) if isinstance(document, dict) else None
    return value if type(value) is int and value >= 0 else None

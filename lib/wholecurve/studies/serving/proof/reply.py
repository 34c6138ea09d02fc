"""From a script and a request to bytes and the moments when they are due. Nothing here knows of sockets or clocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from wholecurve.studies.serving.proof.script import Script

Ending = Literal["keep", "close", "reset", "stall"]
_GARBAGE = b"\xff\xfe\x00garbage\x80\xc3\x28\n\n\x9f\x92" * 4
_TOOL_NAME = "look_up"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that are due at ``at_s`` (seconds after the request was read), and what of the reply they complete."""

    at_s: float
    data: bytes
    tokens: tuple[int, ...] = ()  # of each content chunk that ends in these bytes
    ending: Ending | None = None  # what happens to the connection after them


@dataclass(frozen=True)
class Asked:
    """What of a request's body decides the reply."""

    chat: bool
    stream: bool
    wanted_tokens: int
    prompt_tokens: int
    usage: bool  # stream_options.include_usage
    continuous: bool  # stream_options.continuous_usage_stats
    model: str

    @classmethod
    def of(cls, body: dict[str, Any], chat: bool) -> "Asked":
        """Read a request's body; what a client left out has the API's default."""
        options = body.get("stream_options") or {}
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        return cls(
            chat=chat,
            stream=bool(body.get("stream")),
            wanted_tokens=16 if wanted is None else int(wanted),
            prompt_tokens=_prompt_tokens(body.get("messages") if chat else body.get("prompt")),
            usage=bool(options.get("include_usage")),
            continuous=bool(options.get("continuous_usage_stats")),
            model=str(body.get("model", "")),
        )


def _prompt_tokens(prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list) and all(isinstance(part, int) for part in prompt):
        return len(prompt)
    return sum(_prompt_tokens(part.get("content")) for part in prompt or [] if isinstance(part, dict))


class Reply:
    """The events of one reply, each as bytes."""

    def __init__(self, script: Script, asked: Asked):
        self.script, self.asked = script, asked
        self.sizes = script.chunk_sizes(asked.wanted_tokens)
        self._sent = 0  # tokens
        self._object = "chat.completion.chunk" if asked.chat else "text_completion"

    def writes(self) -> Iterator[Write]:
        """Everything after the head, in order: what it is due at, and how it ends."""
        script = self.script
        yield from self._opening(script.headers_s)
        at_s, pending, done = max(script.headers_s, script.ttft_s), [], []
        for index, tokens in enumerate(self.sizes):
            if script.fault is not None and index == script.after_chunks:
                break
            if index:
                at_s += script.gap_s(index)
            pending.append(self._content(index, tokens))
            done.append(tokens)
            if len(pending) == script.chunks_per_write or index == len(self.sizes) - 1:
                yield from self._pieces(at_s, b"".join(pending), tuple(done))
                pending, done = [], []
        if pending:  # a fault inside a burst: what came before it is sent
            yield Write(at_s, b"".join(pending), tuple(done))
        yield from self._ending(at_s + (script.gap_s(len(self.sizes)) if script.fault else 0.0))

    def whole(self) -> dict:
        """The reply as one JSON document, for a request without ``stream``."""
        text = "".join(self._text(tokens) for tokens in self.sizes)
        reason = self.script.finish_reason
        if self.asked.chat:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": text, "finish_reason": reason}
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return {**self._frame(kind), "choices": [choice], "usage": self._usage()}

    def error(self, status: int) -> dict:
        """The body of a reply with a status of 400 and above, and of an error inside the stream."""
        return {"error": {"message": f"scripted error {status}", "type": "scripted", "code": status}}

    def _opening(self, at_s: float) -> Iterator[Write]:
        opening = []
        if self.asked.chat and self.script.role_chunk:
            opening.append(self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
        empty = {"delta": {"content": ""}} if self.asked.chat else {"text": ""}
        opening += [self._event([{"index": 0, **empty, "finish_reason": None}])] * self.script.empty_chunks
        if opening:
            yield from self._pieces(at_s, b"".join(opening), ())

    def _content(self, index: int, tokens: int) -> bytes:
        script, before = self.script, self._sent
        last = index == len(self.sizes) - 1
        text = self._text(tokens)
        if not self.asked.chat:
            choice: dict[str, Any] = {"index": 0, "text": text}
        elif before < script.reasoning_tokens:
            choice = {"index": 0, "delta": {script.reasoning_field: text}}
        elif self._sent > sum(self.sizes) - script.tool_call_tokens:
            choice = {"index": 0, "delta": {"tool_calls": [self._tool_call(before, text)]}}
        else:
            choice = {"index": 0, "delta": {"content": text}}
        choice["finish_reason"] = script.finish_reason if last and script.usage != "empty text" else None
        usage = None
        if script.usage == "as asked" and self.asked.continuous:
            usage = self._usage()
        if script.usage == "last chunk" and last:
            usage = self._usage()
        return self._event([choice], usage)

    def _tool_call(self, before: int, text: str) -> dict:
        if before <= sum(self.sizes) - self.script.tool_call_tokens:
            return {"index": 0, "id": "call-0", "type": "function", "function": {"name": _TOOL_NAME, "arguments": ""}}
        return {"index": 0, "function": {"arguments": text}}

    def _text(self, tokens: int) -> str:
        first, self._sent = self._sent, self._sent + tokens
        return "".join(self.script.token_text.replace("{}", str(first + i)) for i in range(tokens))

    def _ending(self, at_s: float) -> Iterator[Write]:
        script = self.script
        match script.fault:
            case "stalls":
                yield Write(at_s, b"", ending="stall")
            case "resets":
                yield Write(at_s, b"", ending="reset")
            case "closes":
                yield Write(at_s, b"", ending="close")
            case "closes mid-event":
                event = self._event([{"index": 0, "text": "half", "delta": {"content": "half"}}])
                yield Write(at_s, event[: len(event) // 2], ending="close")
            case "garbage":
                yield Write(at_s, _GARBAGE, ending="keep")
            case "bad json":
                yield Write(at_s, self._line(b'{"choices": [{"text": '), ending="keep")
            case "no chunk":
                yield Write(at_s, self._line(b'{"hello": 1}'), ending="keep")
            case "error event":
                yield Write(at_s, self._line(orjson.dumps(self.error(500))) + self._line(b"[DONE]"), ending="keep")
            case "truncated":
                yield Write(at_s, b"", ending="keep")
            case None:
                yield Write(at_s, self._last_events(), ending="keep")

    def _last_events(self) -> bytes:
        script, events = self.script, []
        if script.usage == "empty text":
            empty = {"delta": {"content": ""}} if self.asked.chat else {"text": ""}
            events.append(self._event([{"index": 0, **empty, "finish_reason": script.finish_reason}], self._usage()))
        elif not self.sizes:
            empty = {"delta": {}} if self.asked.chat else {"text": ""}
            events.append(self._event([{"index": 0, **empty, "finish_reason": script.finish_reason}]))
        if script.usage == "zero" or (script.usage == "as asked" and self.asked.usage):
            events.append(self._event([], self._usage()))
        if script.done_event:
            events.append(self._line(b"[DONE]"))
        return b"".join(events)

    def _pieces(self, at_s: float, data: bytes, tokens: tuple[int, ...]) -> Iterator[Write]:
        size = self.script.split_bytes or len(data)
        starts = range(0, len(data), size)
        for number, start in enumerate(starts):
            last = number == len(starts) - 1
            yield Write(at_s + number * self.script.split_gap_s, data[start : start + size], tokens if last else ())

    def _usage(self) -> dict:
        counted = 0 if self.script.usage == "zero" else self._sent
        usage: dict[str, Any] = {
            "prompt_tokens": self.asked.prompt_tokens,
            "completion_tokens": counted,
            "total_tokens": self.asked.prompt_tokens + counted,
        }
        if self.script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.script.cached_tokens}
        if self.script.reasoning_tokens:
            thoughts = sum(self.sizes[: self._thought_chunks()])
            usage["completion_tokens_details"] = {"reasoning_tokens": min(counted, thoughts)}
        return usage

    def _thought_chunks(self) -> int:
        """Content chunks that begin before the last reasoning token: a chunk is all thought or none."""
        count = before = 0
        for tokens in self.sizes:
            if before >= self.script.reasoning_tokens:
                break
            count, before = count + 1, before + tokens
        return count

    def _frame(self, kind: str) -> dict:
        return {"id": "scripted", "object": kind, "created": 0, "model": self.asked.model}

    def _event(self, choices: list[dict], usage: dict | None = None) -> bytes:
        document = {**self._frame(self._object), "choices": choices}
        if usage is not None:
            document["usage"] = usage
        return self._line(orjson.dumps(document))

    def _line(self, data: bytes) -> bytes:
        newline = self.script.newline.encode()
        comment = b": ping" + newline + newline if self.script.comments else b""
        return comment + b"data: " + data + newline + newline

"""/v1/chat/completions: a conversation, with tools and forms of answers."""

from typing import TYPE_CHECKING

import orjson

from wholecurve.engine.sampling import GrammarSpec
from wholecurve.engine.server.answer import Answer, Choice
from wholecurve.engine.server.chat_protocol import ChatRequest, ForcedTool
from wholecurve.engine.server.params import answer_length, sampling_params
from wholecurve.engine.server.protocol import StreamOptions
from wholecurve.engine.server.service import Service
from wholecurve.engine.server.token_text import TokenTexts
from wholecurve.engine.server.tools import ToolCall, ToolFormat, ToolParser, tool_grammar
from wholecurve.engine.server.writing import DONE, Envelope, alternatives, finite, usage_of

if TYPE_CHECKING:
    from wholecurve.engine.engine import StepOutput
    from wholecurve.engine.sampling import TokenLogprobs

_HOLE = "\x00text"


class ChatFormat:
    """Writes the choices of a chat. parsers: one per choice where the model may call tools, else empty."""

    def __init__(self, envelope: Envelope, request: ChatRequest, parsers: list[ToolParser], token_texts: TokenTexts):
        self._envelope, self._request, self._parsers, self._token_texts = envelope, request, parsers, token_texts
        options = request.stream_options or StreamOptions()
        self._with_usage, self._counts_chunks = options.include_usage, options.continuous_usage_stats
        self._is_plain = not request.logprobs and not request.return_token_ids
        self._parts: list[list[str | ToolCall]] = [[] for _ in range(request.n)]
        self._token_ids: list[list[int]] = [[] for _ in range(request.n)]
        self._logprobs: list[list] = [[] for _ in range(request.n)]
        self._events = [
            envelope.split_event(self._delta(i, {"content": _HOLE}), _HOLE, self._with_usage)
            if request.stream
            else (b"", b"")
            for i in range(request.n)
        ]

    def _delta(self, index: int, delta: dict) -> dict:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _event(self, document: dict, choice: Choice) -> bytes:
        usage = usage_of([choice], 1) if self._counts_chunks else None
        return self._envelope.event([document], self._with_usage, usage)

    def _logprobs_of(self, outputs: "list[TokenLogprobs]") -> dict | None:
        if not self._request.logprobs:
            return None

        def entry(token_id: int, logprob: float) -> dict:
            text, content = self._token_texts(token_id)
            return {"token": text, "logprob": finite(logprob), "bytes": content}

        return {
            "content": [
                entry(chosen.token_id, chosen.logprob)
                | {"top_logprobs": [entry(token_id, logprob) for token_id, logprob in alternatives(chosen)]}
                for chosen in outputs
            ]
        }

    def _split(self, choice: Choice, output: "StepOutput") -> list[str | ToolCall]:
        """Text and calls that this step made certain."""
        if not self._parsers:
            return [output.text] if output.text else []
        parser = self._parsers[choice.index]
        parts = parser.push(output.text)
        return parts if output.finish_reason is None else parts + parser.finish()

    def _finish_reason(self, choice: Choice) -> str:
        """As the engine says; "tool_calls" where the model chose to call, not where one function was forced on it."""
        has_calls = self._parsers and self._parsers[choice.index].num_calls
        if choice.finish_reason == "stop" and has_calls and not isinstance(self._request.tool_choice, ForcedTool):
            return "tool_calls"
        return choice.finish_reason

    def opening(self, choice: Choice) -> bytes:
        return self._event(self._delta(choice.index, {"role": "assistant", "content": ""}), choice)

    def chunk(self, choice: Choice, output: "StepOutput") -> bytes:
        index, parts = choice.index, self._split(choice, output)
        if output.finish_reason is None and self._is_plain and not self._counts_chunks:
            if not parts:
                return b""
            if len(parts) == 1 and isinstance(parts[0], str):
                before, after = self._events[index]
                return before + orjson.dumps(parts[0]) + after
        events = []
        for part in parts:
            if isinstance(part, ToolCall):
                delta = {"tool_calls": [{"index": part.number} | _call_document(part)]}
            else:
                delta = {"content": part}
            events.append(self._delta(index, delta))
        if self._request.logprobs or self._request.return_token_ids:
            if not events:
                events.append(self._delta(index, {"content": ""}))
            events[0]["logprobs"] = self._logprobs_of(output.logprobs or [])
            if self._request.return_token_ids:
                events[0]["token_ids"] = output.token_ids
        if output.finish_reason is not None:
            last = self._delta(index, {})
            events.append(last | {"finish_reason": self._finish_reason(choice), "stop_reason": choice.stop_reason})
        return b"".join(self._event(document, choice) for document in events)

    def closing(self, choices: list[Choice]) -> bytes:
        if not self._with_usage:
            return DONE
        return self._envelope.event([], True, usage_of(choices, self._request.n)) + DONE

    def collect(self, choice: Choice, output: "StepOutput") -> None:
        self._parts[choice.index] += self._split(choice, output)
        if not self._is_plain:
            self._token_ids[choice.index] += output.token_ids
            self._logprobs[choice.index] += output.logprobs or []

    def body(self, choices: list[Choice]) -> bytes:
        documents = []
        for choice in choices:
            index = choice.index
            texts = [part for part in self._parts[index] if isinstance(part, str)]
            calls = [_call_document(part) for part in self._parts[index] if isinstance(part, ToolCall)]
            message = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
            if calls:
                message["tool_calls"] = calls
            document = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs_of(self._logprobs[index]),
                "finish_reason": self._finish_reason(choice),
                "stop_reason": choice.stop_reason,
            }
            if self._request.return_token_ids:
                document["token_ids"] = self._token_ids[index]
                document["prompt_token_ids"] = choice.prompt_ids
            documents.append(document)
        return orjson.dumps(self._envelope.document(documents) | {"usage": usage_of(choices, self._request.n)})


def _call_document(call: ToolCall) -> dict:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def answer_grammar(request: ChatRequest, style: ToolFormat) -> GrammarSpec | None:
    """What the answer must match: the form that the request gives, or calls of tools."""
    form = request.response_format
    if form is not None and form.type == "json_object":
        return GrammarSpec.json_object()
    if form is not None and form.type == "json_schema":
        return GrammarSpec.json_schema(form.json_schema.schema_)
    return tool_grammar(request.tools, request.tool_choice, request.parallel_tool_calls, style)


async def chat(service: Service, request: ChatRequest, arrival_s: float) -> Answer:
    """Put a checked request into the engine and return the response that follows it."""
    service.check_model(request.model)
    token_ids = await service.encoder.encode_chat(request)
    max_tokens = request.max_completion_tokens or request.max_tokens
    length = answer_length(service.settings, len(token_ids), max_tokens)
    grammar = answer_grammar(request, service.tool_format)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    choices = sampling_params(request, service.settings, length, logprobs, grammar)
    await service.prepare(choices[0])
    prompts = [(token_ids, params) for params in choices]
    names = {tool.function.name for tool in request.tools} if request.tool_choice != "none" else set()
    parsers = [ToolParser(service.tool_format, names) for _ in prompts] if names else []
    envelope = Envelope("chatcmpl", "chat.completion", service.settings.model_name)
    style = ChatFormat(envelope, request, parsers, service.token_texts)
    return service.answer(request, envelope.answer_id, prompts, style, arrival_s)

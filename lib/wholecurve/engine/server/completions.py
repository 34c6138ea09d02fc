"""/v1/completions: text that goes on."""

from typing import TYPE_CHECKING

import orjson

from wholecurve.engine.server.answer import Answer, Choice
from wholecurve.engine.server.params import answer_length, check_token_ids, sampling_params
from wholecurve.engine.server.protocol import CompletionRequest, StreamOptions
from wholecurve.engine.server.service import Service
from wholecurve.engine.server.token_text import TokenTexts
from wholecurve.engine.server.writing import DONE, Envelope, alternatives, finite, usage_of

if TYPE_CHECKING:
    from wholecurve.engine.engine import StepOutput

_HOLE = "\x00text"


class CompletionFormat:
    """Writes the choices of a completion. echoed: text before each choice, where the request wants it back."""

    def __init__(self, envelope: Envelope, request: CompletionRequest, echoed: list[str], token_texts: TokenTexts):
        self._envelope, self._request, self._echoed, self._token_texts = envelope, request, echoed, token_texts
        options = request.stream_options or StreamOptions()
        self._with_usage, self._counts_chunks = options.include_usage, options.continuous_usage_stats
        self._is_plain = request.logprobs is None and not request.return_token_ids
        count = len(echoed)
        self._texts: list[list[str]] = [[text] if text else [] for text in echoed]
        self._token_ids: list[list[int]] = [[] for _ in range(count)]
        self._logprobs: list[list] = [[] for _ in range(count)]
        self._offsets = [len(text) for text in echoed]  # characters before the next token, for text_offset
        self._events = [
            envelope.split_event(self._choice(i, _HOLE), _HOLE, self._with_usage) if request.stream else (b"", b"")
            for i in range(count)
        ]

    def _choice(self, index: int, text: str, logprobs: dict | None = None, finish_reason: str | None = None) -> dict:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs_of(self, index: int, outputs: list) -> dict | None:
        """OpenAI's four lists, for these tokens; the chosen token is always among its alternatives."""
        if self._request.logprobs is None:
            return None
        tokens, chosen, best, offsets = [], [], [], []
        for entry in outputs:
            text = self._token_texts(entry.token_id)[0]
            tokens.append(text)
            chosen.append(finite(entry.logprob))
            ranked = {self._token_texts(token_id)[0]: value for token_id, value in reversed(alternatives(entry))}
            best.append({**dict(reversed(ranked.items())), text: finite(entry.logprob)} if ranked else None)
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": chosen,
            "top_logprobs": best if self._request.logprobs else None,
            "text_offset": offsets,
        }

    def opening(self, choice: Choice) -> bytes:
        echoed = self._echoed[choice.index]
        return self._envelope.event([self._choice(choice.index, echoed)], self._with_usage) if echoed else b""

    def chunk(self, choice: Choice, output: "StepOutput") -> bytes:
        index, text = choice.index, output.text
        if output.finish_reason is None and self._is_plain and not self._counts_chunks:
            if not text:
                return b""
            before, after = self._events[index]
            return before + orjson.dumps(text) + after
        logprobs = self._logprobs_of(index, output.logprobs)
        document = self._choice(index, text, logprobs, output.finish_reason)
        if self._request.return_token_ids:
            document["token_ids"] = output.token_ids
        if output.finish_reason is not None:
            document["stop_reason"] = output.stop_reason
        usage = usage_of([choice], 1) if self._counts_chunks else None
        return self._envelope.event([document], self._with_usage, usage)

    def closing(self, choices: list[Choice]) -> bytes:
        if not self._with_usage:
            return DONE
        return self._envelope.event([], True, usage_of(choices, self._request.n)) + DONE

    def collect(self, choice: Choice, output: "StepOutput") -> None:
        self._texts[choice.index].append(output.text)
        if not self._is_plain:
            self._token_ids[choice.index] += output.token_ids
            self._logprobs[choice.index] += output.logprobs or []

    def body(self, choices: list[Choice]) -> bytes:
        documents = []
        for choice in choices:
            index = choice.index
            logprobs = self._logprobs_of(index, self._logprobs[index])
            document = self._choice(index, "".join(self._texts[index]), logprobs, choice.finish_reason)
            document["stop_reason"] = choice.stop_reason
            if self._request.return_token_ids:
                document["token_ids"] = self._token_ids[index]
                document["prompt_token_ids"] = choice.prompt_ids
            documents.append(document)
        return orjson.dumps(self._envelope.document(documents) | {"usage": usage_of(choices, self._request.n)})


async def complete(service: Service, request: CompletionRequest, arrival_s: float) -> Answer:
    """Put a checked request into the engine and return the response that follows it."""
    service.check_model(request.model)
    prompts, echoed = [], []
    for prompt in request.prompt:
        if isinstance(prompt, str):
            token_ids = await service.encoder.encode(prompt, request.add_special_tokens, "prompt")
            if not token_ids:
                raise service.empty_prompt()
        else:
            token_ids = prompt
            check_token_ids(service.settings, "prompt", token_ids)
        text = ""
        if request.echo:
            text = prompt if isinstance(prompt, str) else service.encoder.decode(token_ids)
        length = answer_length(service.settings, len(token_ids), request.max_tokens)
        for params in sampling_params(request, service.settings, length, request.logprobs):
            prompts.append((token_ids, params))
            echoed.append(text)
    envelope = Envelope("cmpl", "text_completion", service.settings.model_name)
    style = CompletionFormat(envelope, request, echoed, service.token_texts)
    return service.answer(request, envelope.answer_id, prompts, style, arrival_s)

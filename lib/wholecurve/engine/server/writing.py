"""Parts that completions and chat write alike."""

import secrets
import time
from typing import TYPE_CHECKING

import orjson

from wholecurve.engine.server.answer import Choice

if TYPE_CHECKING:
    from wholecurve.engine.sampling import TokenLogprobs

DONE = b"data: [DONE]\n\n"


class Envelope:
    """What all documents of one answer share: id, kind, time, model."""

    def __init__(self, prefix: str, kind: str, model_name: str):
        self.answer_id = f"{prefix}-{secrets.token_hex(16)}"
        self._kind, self._model_name, self._created = kind, model_name, int(time.time())

    def document(self, choices: list[dict], chunk: bool = False) -> dict:
        """A whole answer or a chunk around its choices."""
        kind = f"{self._kind}.chunk" if chunk and self._kind == "chat.completion" else self._kind
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self._created,
            "model": self._model_name,
            "choices": choices,
        }

    def split_event(self, choice: dict, hole: str, with_usage: bool) -> tuple[bytes, bytes]:
        """The event of a chunk, cut where `hole` stands in its choice as a value: bytes before and after.

        Text is put in between per step, so that nothing else has to be serialised then.
        """
        document = self.document([choice], chunk=True)
        if with_usage:
            document["usage"] = None
        before, after = orjson.dumps(document).split(orjson.dumps(hole))
        return b"data: " + before, after + b"\n\n"

    def event(self, choices: list[dict], with_usage: bool, usage: dict | None = None) -> bytes:
        """The event of one chunk. with_usage: the field is there, null but in the last chunk."""
        document = self.document(choices, chunk=True)
        if with_usage:
            document["usage"] = usage
        return b"data: " + orjson.dumps(document) + b"\n\n"


def usage_of(choices: list[Choice], num_choices_per_prompt: int) -> dict:
    """OpenAI's token counts. A prompt counts once, however many choices it has."""
    prompts = choices[::num_choices_per_prompt]
    prompt_tokens = sum(len(choice.prompt_ids) for choice in prompts)
    completion_tokens = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached for choice in prompts)},
    }


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes −9999 for a token that is out of the question."""
    return max(logprob, -9999.0)


def alternatives(logprobs: "TokenLogprobs") -> list[tuple[int, float]]:
    """The most probable tokens, best first."""
    return [(token_id, finite(logprob)) for token_id, logprob in logprobs.alternatives]

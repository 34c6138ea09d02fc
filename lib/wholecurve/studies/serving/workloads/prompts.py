"""A prompt in the three forms that servers take: token ids, one text, or chat messages.

A prompt is written as parts. Each part has a role and contents of a planned number of tokens; ids and text are the
contents in a row, messages keep the roles.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from wholecurve.studies.serving.load.turns import Prompt
from wholecurve.studies.serving.workloads.tools import argument_names, call_arguments
from wholecurve.studies.serving.workloads.vocabulary import Vocabulary
from wholecurve.studies.serving.workloads.words import Words

Content = list[int] | str
# Of a reply that calls tools, so many tokens are arguments of the call; the rest is what the assistant says.
ARGUMENT_TOKENS = 6
# Room left in the model's window for what the server adds: generous, since a prompt that does not fit is refused.
SPECIAL_TOKENS = 8
TEMPLATE_TOKENS = 16  # per message
CHARACTERS_PER_TOKEN = 3  # of JSON


@dataclass(frozen=True)
class Part:
    """One message, or the stretch of ids or text that takes its place. ``tokens`` is its planned length."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Content
    tokens: int
    calls: tuple[dict[str, Any], ...] = ()  # of an assistant: tool calls in OpenAI form
    answers: str | None = None  # of a tool: the id of the call

    def message(self) -> dict[str, Any]:
        """The part as a chat message in OpenAI form."""
        message = {"role": self.role, "content": self.content}
        if self.calls:
            message["tool_calls"] = list(self.calls)
        if self.answers is not None:
            message["tool_call_id"] = self.answers
        return message


class Writer(ABC):
    """Writes contents of planned lengths, and prompts of them. ``lengths`` says how exact those lengths are."""

    lengths: str

    @abstractmethod
    def content(self, rng: np.random.Generator, tokens: int) -> Content:
        """New contents of ``tokens`` tokens."""

    @abstractmethod
    def first(self, content: Content, tokens: int) -> Content:
        """The first ``tokens`` tokens of contents that this writer made."""

    @abstractmethod
    def joined(self, contents: Sequence[Content]) -> Content:
        """Contents in a row."""

    @abstractmethod
    def allowance(self, parts: Sequence[Part]) -> int:
        """Tokens to leave room for beside the planned ones, where only the server counts exactly."""

    def prompt(self, parts: Sequence[Part]) -> Prompt:
        """All parts as one prompt."""
        return self.joined([part.content for part in parts])

    def reply(self, rng: np.random.Generator, tokens: int, calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> Part:
        """What the assistant said. ``calls`` are ids and tools that it calls, where the form can show them."""
        return Part("assistant", self.content(rng, tokens), tokens)


class IdsWriter(Writer):
    """Writes prompts as token ids: every length is exact."""

    lengths = "exact: prompts are token ids"

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary

    @property
    def vocab_size(self) -> int:
        """Ids below it are tokens of the model."""
        return self._vocabulary.size

    def content(self, rng: np.random.Generator, tokens: int) -> list[int]:
        """New ids."""
        return self._vocabulary.draw(rng, tokens)

    def first(self, content: list[int], tokens: int) -> list[int]:
        """The first ids."""
        return content[:tokens]

    def joined(self, contents: Sequence[list[int]]) -> list[int]:
        """Ids in a row."""
        return [token for content in contents for token in content]

    def allowance(self, parts: Sequence[Part]) -> int:
        """None: a server adds nothing to ids."""
        return 0


class TextWriter(Writer):
    """Writes prompts as one text."""

    def __init__(self, words: Words):
        self._words = words
        self.lengths = (
            "exact in the model's tokenizer, before the server adds special tokens or a template"
            if words.exact
            else "approximate: prompts are common English words, counted as one token each; the server's count holds"
        )

    def content(self, rng: np.random.Generator, tokens: int) -> str:
        """New words, ``tokens`` of them."""
        return self._words.draw(rng, tokens)

    def first(self, content: str, tokens: int) -> str:
        """The first words."""
        return "".join(" " + word for word in content.split()[:tokens])

    def joined(self, contents: Sequence[str]) -> str:
        """Texts in a row; each word has its blank in front."""
        return "".join(contents)

    def allowance(self, parts: Sequence[Part]) -> int:
        """Special tokens, and a tenth where a word may be more than one token."""
        return SPECIAL_TOKENS + (0 if self._words.exact else math.ceil(sum(part.tokens for part in parts) / 10))


class MessagesWriter(TextWriter):
    """Writes prompts as chat messages; replies that call tools carry the calls. ``tools`` go with every request."""

    def __init__(self, words: Words, tools: Sequence[dict[str, Any]] = ()):
        super().__init__(words)
        self._tools_tokens = len(json.dumps(list(tools))) // CHARACTERS_PER_TOKEN
        self.lengths += "; definitions of tools come on top" if tools else ""

    def reply(self, rng: np.random.Generator, tokens: int, calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> Part:
        """What the assistant said; of its tokens, up to 6 per call are the text arguments of the call."""
        written = []
        left = tokens
        for call_id, tool in calls:
            names = argument_names(tool)
            share = min(ARGUMENT_TOKENS, left // len(calls)) if names else 0
            texts = {name: self.content(rng, n).strip() for name, n in zip(names, _split(share, len(names)))}
            arguments = json.dumps(call_arguments(tool, texts))
            written.append(
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": tool["function"]["name"], "arguments": arguments},
                }
            )
            left -= share
        return Part("assistant", self.content(rng, left), tokens, tuple(written))

    def prompt(self, parts: Sequence[Part]) -> Prompt:
        """A message per part."""
        return [part.message() for part in parts]

    def allowance(self, parts: Sequence[Part]) -> int:
        """What the template writes around each message and call, and the definitions of the tools."""
        calls = [call for part in parts for call in part.calls]
        calls_tokens = len(json.dumps(calls)) // CHARACTERS_PER_TOKEN
        return (
            super().allowance(parts) + TEMPLATE_TOKENS * (len(parts) + len(calls)) + calls_tokens + self._tools_tokens
        )


def _split(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` whole shares that differ by 1 at most; the first ones are larger."""
    if parts == 0:
        return []
    share, rest = divmod(total, parts)
    return [share + (i < rest) for i in range(parts)]

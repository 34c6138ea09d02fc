"""How each kind of server wants to be asked, beyond the OpenAI API that all of them speak.

What their counters are called is in servers/counters.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from wholecurve.errors import UserError

_MAX_TOKENS = {"completions": "max_tokens", "chat": "max_tokens"}
_USAGE = {"stream_options": {"include_usage": True}}
_USAGE_PER_CHUNK = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def _at_most(length: int) -> dict[str, Any]:
    return {}


def _ignore_eos(length: int) -> dict[str, Any]:
    # Not min_tokens as well: it adds a processor of logits to each step of the server.
    return {"ignore_eos": True}


def _min_tokens(length: int) -> dict[str, Any]:
    return {"min_tokens": length}


def _no_eos_token(length: int) -> dict[str, Any]:
    # The configuration replaces the model's own as a whole. −1 is no token: generation cannot meet it.
    config = {"max_new_tokens": length, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    return {"generation_config": orjson.dumps(config).decode()}


@dataclass(frozen=True)
class Profile:
    """What one kind of server needs."""

    exact_length: Callable[[int], dict[str, Any]] = _at_most  # fields that force so many tokens; none: at most
    usage: dict[str, Any] = field(default_factory=lambda: _USAGE)  # fields that ask for counts at the end
    usage_per_chunk: dict[str, Any] = field(default_factory=dict)  # the same for counts in every chunk
    greedy: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})
    ids_field: str | None = None  # field of completions that takes token ids; None: text alone
    length_field: dict[str, str] = field(default_factory=lambda: _MAX_TOKENS)  # most tokens of the answer, by API
    keeps_connections: bool = True  # False: it closes them after an answer, whatever its headers say


PROFILES: dict[str, Profile] = {
    # Source: openai/types/{completion,chat/completion}_create_params.py. Nothing forces a length; max_tokens of a chat
    # is deprecated, and refused by models that think.
    "openai": Profile(ids_field="prompt", length_field={"completions": "max_tokens", "chat": "max_completion_tokens"}),
    # Source: engine/server/{protocol,app}.py of this project. Unknown fields are errors.
    "wholecurve": Profile(
        exact_length=_ignore_eos,
        usage_per_chunk=_USAGE_PER_CHUNK,
        ids_field="prompt",
    ),
    # Source: vllm/entrypoints/openai/completion/protocol.py of 0.32. Cached tokens are told with
    # --enable-prompt-tokens-details alone.
    "vllm": Profile(
        exact_length=_ignore_eos,
        usage_per_chunk=_USAGE_PER_CHUNK,
        ids_field="prompt",
    ),
    # Source: sglang/srt/entrypoints/openai/protocol.py. Cached tokens are told with --enable-cache-report, metrics
    # with --enable-metrics.
    "sglang": Profile(
        exact_length=_ignore_eos,
        usage_per_chunk=_USAGE_PER_CHUNK,
        ids_field="prompt",
    ),
    # Source: dynamo/lib/llm/src/protocols/openai/common_ext.rs: ignore_eos stands beside OpenAI's fields.
    "dynamo": Profile(
        exact_length=_ignore_eos,
        ids_field="prompt",
    ),
    # Source: tensorrt_llm/serve/openai_protocol.py. Unknown fields are errors; /metrics is JSON of its steps.
    "tensorrt-llm": Profile(
        exact_length=_ignore_eos,
        usage_per_chunk=_USAGE_PER_CHUNK,
        ids_field="prompt",
    ),
    # Source: llama.cpp/tools/server/{server-schema,server-context,server-task}.cpp. /metrics is there with --metrics.
    # After a stream it closes the connection although it said "Keep-Alive: timeout=5, max=100": of 260 requests one
    # after another, each sent as soon as the one before had ended, every second one was lost on a closed connection.
    "llama.cpp": Profile(
        exact_length=_ignore_eos,
        ids_field="prompt",
        keeps_connections=False,
    ),
    # Source: transformers/cli/serving/{completion,chat_completion,utils}.py. Usage comes without being asked for, an
    # answer ends with a finish_reason and no [DONE], and prompts of completions are texts.
    "transformers": Profile(exact_length=_no_eos_token, usage={}),
    # Source: friendli.ai/docs/openapi/serverless/completions.
    "friendli": Profile(exact_length=_min_tokens, ids_field="tokens"),
    # Source: docs.together.ai/reference/completions-1. Usage comes in the last chunk without being asked for.
    "together": Profile(usage={}),
}


def profile_of(name: str) -> Profile:
    """The profile called `name`; UserError that lists those there are."""
    if name not in PROFILES:
        raise UserError(f"profile {name!r} is not known; choose from {', '.join(PROFILES)}")
    return PROFILES[name]

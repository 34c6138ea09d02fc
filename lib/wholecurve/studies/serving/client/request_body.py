"""The JSON body of a request: the turn, in the dialect of its server."""

from typing import Any

import orjson

from wholecurve.errors import UserError
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.client.profiles import Profile
from wholecurve.studies.serving.load.turns import Turn

# What the client relies on, and no extra field may change.
_OWN_FIELDS = ("model", "prompt", "messages", "stream", "n")


def request_body(endpoint: Endpoint, profile: Profile, turn: Turn) -> bytes:
    """The body that asks `endpoint` for `turn`; UserError where the turn's prompt is none that it can take.

    Fields of `extra_body` replace those before them (a turn's, the endpoint's, the profile's); one that is None is
    left out.
    """
    length = turn.output_tokens
    fields: dict[str, Any] = {
        "model": endpoint.model,
        **_prompt(endpoint, profile, turn),
        "stream": True,
        profile.length_field[endpoint.api]: length,
        **profile.greedy,
        **profile.usage,
    }
    if endpoint.usage_per_chunk:
        fields |= profile.usage_per_chunk
    if endpoint.ignore_eos:
        fields |= profile.exact_length(length)
    fields |= endpoint.extra_body
    fields |= turn.extra_body
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})


def check_extra_body(where: str, extra_body: dict[str, Any]) -> None:
    """UserError for an extra field that would change what the client measures."""
    for name in _OWN_FIELDS:
        if name in extra_body:
            raise UserError(f"{where}: extra_body.{name} is set by the client; leave it out")


def _prompt(endpoint: Endpoint, profile: Profile, turn: Turn) -> dict[str, Any]:
    prompt = turn.prompt
    if endpoint.api == "chat":
        if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
            raise UserError(f"turn {turn.turn_id}: a chat needs messages; its prompt is {_kind(prompt)}")
        return {"messages": prompt}
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if turn.prompt_tokens is None:
        raise UserError(f"turn {turn.turn_id}: completions need token ids or a text; its prompt is {_kind(prompt)}")
    if profile.ids_field is None:
        raise UserError(
            f"turn {turn.turn_id}: servers of profile {endpoint.profile} take no token ids; make the prompt a text"
        )
    return {profile.ids_field: prompt}


def _kind(prompt: Any) -> str:
    if isinstance(prompt, str):
        return "a text"
    return "a list of token ids" if prompt and isinstance(prompt[0], int) else "a list of messages"

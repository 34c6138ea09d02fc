"""Greedy answers of a server, for the float32 reference to judge: the same question as for engines, asked over HTTP.

A server returns text. Its tokens are had by tokenising that text again, which is not always what the server chose:
the last token is left out, because a cut word is tokenised differently, and the record says how the tokens were had.
"""

from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.request import Request
from wholecurve.studies.serving.client.endpoint import Endpoint
from wholecurve.studies.serving.client.profiles import profile_of
from wholecurve.studies.serving.servers.pages import Pages

HOW = "text of the answers, tokenised again"
# What stands for bytes that are no whole character: an answer that was cut may end so.
_CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def greedy_answers(endpoint: Endpoint, tokenizer: Any, requests: list[Request]) -> dict[str, list[int]]:
    """Tokens by request, one request after another.

    UserError where the server answers without text, or does not take such a request.
    """
    pages = Pages(endpoint.base_url, api_key=endpoint.api_key, timeout_s=endpoint.timeout_s)
    return {request.request_id: _answer(pages, endpoint, tokenizer, request) for request in requests}


def _answer(pages: Pages, endpoint: Endpoint, tokenizer: Any, request: Request) -> list[int]:
    profile, where = profile_of(endpoint.profile), f"{endpoint.base_url}/completions"
    # The prompt holds the chat template already; as ids no server adds one of its own.
    if profile.ids_field is not None:
        prompt = {profile.ids_field: request.prompt_ids}
    else:
        prompt = {"prompt": tokenizer.decode(request.prompt_ids)}
    length = {profile.length_field["completions"]: request.output_tokens}
    body = {"model": endpoint.model, **profile.greedy, **length, **prompt, **endpoint.extra_body}
    reply = pages.post_json("/completions", body)
    try:
        choice = reply["choices"][0]
        text = choice["text"]
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{where}: its answer holds no text of a choice") from None
    tokens = tokenizer.encode(text.rstrip(_CUT_CHARACTER), add_special_tokens=False)
    # An answer that ended by itself is whole; one that was cut may end inside a word.
    tokens = tokens if choice.get("finish_reason") == "stop" else tokens[:-1]
    if not tokens:
        raise UserError(f"{where}: an answer of the agreement check is empty")
    return tokens

"""From a request's fields to what the engine takes."""

from wholecurve.engine.sampling import GrammarSpec, SamplingParams
from wholecurve.engine.server.api_error import bad_request
from wholecurve.engine.server.protocol import SamplingFields
from wholecurve.engine.server.settings import ServerSettings


def answer_length(settings: ServerSettings, num_prompt: int, max_tokens: int | None) -> int:
    """Most tokens of the answer: as asked for, or all the room that the prompt leaves. ApiError 400 for no room."""
    context = settings.context_tokens
    room = context - num_prompt
    if room < 1:
        raise bad_request(
            f"the prompt has {num_prompt} tokens; the context of {context} tokens must hold it and an answer",
            "messages" if max_tokens is None else None,
            "context_length_exceeded",
        )
    if max_tokens is not None and max_tokens > room:
        raise bad_request(
            f"max_tokens: the prompt's {num_prompt} tokens and {max_tokens} new ones exceed the context of {context}",
            "max_tokens",
            "context_length_exceeded",
        )
    return room if max_tokens is None else max_tokens


def check_token_ids(settings: ServerSettings, name: str, token_ids: list[int]) -> None:
    """ApiError 400 for a token that the model does not have."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < settings.vocab_size:
        raise bad_request(f"{name}: token ids must lie between 0 and {settings.vocab_size - 1}", name, "invalid_value")


def sampling_params(
    request: SamplingFields,
    settings: ServerSettings,
    max_new_tokens: int,
    logprobs: int | None,
    grammar: GrammarSpec | None = None,
) -> list[SamplingParams]:
    """Parameters of each of the request's n choices. A given seed counts up from choice to choice.

    logprobs: alternatives per token, None for no logprobs at all.
    """
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    check_token_ids(settings, "logit_bias", list(bias))
    check_token_ids(settings, "stop_token_ids", request.stop_token_ids)
    if request.min_tokens > max_new_tokens:
        raise bad_request(
            f"min_tokens: {request.min_tokens} exceeds the {max_new_tokens} tokens that the answer may have",
            "min_tokens",
            "invalid_value",
        )
    if grammar is not None and request.min_tokens:
        raise bad_request("min_tokens: not together with an answer whose form is given", "min_tokens", "invalid_value")
    return [
        SamplingParams(
            max_new_tokens=max_new_tokens,
            min_new_tokens=request.min_tokens,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=None if request.seed is None else (request.seed + number) % 2**64,
            ignore_eos=request.ignore_eos,
            stop_token_ids=tuple(request.stop_token_ids),
            stop=request.stop or (),
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            logit_bias=bias or None,
            logprobs=logprobs,
            grammar=grammar,
            include_stop=request.include_stop_str_in_output,
        )
        for number in range(request.n)
    ]

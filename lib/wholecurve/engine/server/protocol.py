"""What clients may send, field by field. An unknown field is an error that names it: nothing is ignored silently.

The few fields that are taken and change nothing (`user`, `store`, `metadata`, `service_tier`, `safety_identifier`,
`prompt_cache_key`) say nothing about the answer.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from wholecurve.engine.server.api_error import bad_request, from_validation

MOST_CHOICES = 128
MOST_LOGPROBS = 20
_MOST_STOPS = 64
_MOST_PROMPTS = 2048
_INT64 = 2**63 - 1


class Strict(BaseModel):
    """No coercion, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Strict):
    """include_usage: token counts in a last chunk. continuous_usage_stats: in every chunk, of its choice so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False

    @model_validator(mode="after")
    def _usage_of_chunks(self) -> "StreamOptions":
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats: only with include_usage")
        return self


class SamplingFields(Strict):
    """What completions and chat have in common. Beyond OpenAI's: min_tokens, ignore_eos, top_k, min_p,
    repetition_penalty, stop_token_ids, include_stop_str_in_output, priority (lower first), cache_salt and
    return_token_ids.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stop: Any = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_INT64)] = 0
    ignore_eos: bool = False
    top_k: Annotated[int, Field(ge=-1, le=_INT64)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    stop_token_ids: list[Annotated[int, Field(ge=0, le=_INT64)]] = []
    include_stop_str_in_output: bool = False
    priority: Annotated[int, Field(ge=-_INT64, le=_INT64)] = 0
    cache_salt: str = ""
    return_token_ids: bool = False
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @field_validator("stop")
    @classmethod
    def _stops(cls, value: Any) -> tuple[str, ...]:
        stops = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError("it must be a string or a list of strings, none of them empty")
        if len(stops) > _MOST_STOPS:
            raise ValueError(f"{len(stops)} stop strings; at most {_MOST_STOPS}")
        return tuple(stops)

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for token in value or ():
            if not (token.isascii() and token.isdigit() and len(token) < 19):
                raise ValueError(f"{token!r} is not a token id")
        return value

    @model_validator(mode="after")
    def _usage_of_a_stream(self) -> "SamplingFields":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream")
        return self


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: Any
    max_tokens: Annotated[int, Field(ge=1, le=_INT64)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True

    @field_validator("prompt")
    @classmethod
    def _prompts(cls, value: Any) -> list[str] | list[list[int]]:
        """A list of prompts, each text or token ids."""
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            if all(type(token) is int for token in value):
                return [value]
            is_texts = all(isinstance(prompt, str) for prompt in value)
            is_ids = all(isinstance(p, list) and p and all(type(token) is int for token in p) for p in value)
            if len(value) > _MOST_PROMPTS:
                raise ValueError(f"{len(value)} prompts; at most {_MOST_PROMPTS}")
            if is_texts or is_ids:
                return value
        raise ValueError("it must be a string, a list of strings, a list of token ids, or a list of such lists")

    @model_validator(mode="after")
    def _supported(self) -> "CompletionRequest":
        if self.suffix:
            raise ValueError("suffix: not supported; completions continue the prompt only")
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: {self.best_of} is not supported; it may only equal n")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo: not supported together with logprobs; those of the prompt are not computed")
        return self


RequestModel = TypeVar("RequestModel", bound=SamplingFields)


def parse_request(model: type[RequestModel], body: bytes) -> RequestModel:
    """The checked request of a body of JSON; ApiError 400 that names the first field that is wrong.

    A field that is null counts as not given.
    """
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise from_validation(error) from None

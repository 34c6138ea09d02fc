"""What a client asks of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One request: prompt token ids and how many tokens to generate (end-of-sequence is ignored)."""

    request_id: str
    prompt_ids: list[int]
    output_tokens: int

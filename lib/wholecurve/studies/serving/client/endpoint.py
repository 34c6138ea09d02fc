"""Where requests go, and how that server wants to be asked."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Endpoint:
    """One server as its clients see it. It travels to other processes and machines, so it holds plain values alone."""

    base_url: str  # with its path, without a slash at the end: http://127.0.0.1:8000/v1
    model: str  # what the server calls it
    api: Literal["completions", "chat"] = "completions"
    profile: str = "openai"  # a name in profiles.py: what this kind of server needs beyond the standard
    api_key: str | None = field(default=None, repr=False)
    extra_body: dict[str, Any] = field(default_factory=dict)  # into every request, after the profile's own fields
    # Counts in every chunk, where the profile knows how: exact with several tokens in a chunk, but work for the server.
    usage_per_chunk: bool = False
    ignore_eos: bool = True  # ask for exactly as many tokens as the turn says, where the profile knows how
    timeout_s: float = 600.0  # of a whole request
    connect_timeout_s: float = 10.0
    tokenizer: str | None = None  # folder of one, to count where the server sends no usage

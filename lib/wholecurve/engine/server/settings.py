"""What the server promises and where its limits are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Names and limits. Everything that a client can make grow has a bound here.

    context_tokens: prompt and answer together, the smaller one of the model's context and the cache's capacity.
    max_running: requests that the engine runs at once; max_queued more may wait before clients get 429.
    max_stream_bytes: of one answer, written by the engine and not yet taken by the client, before it is cut off.
    """

    model_name: str
    context_tokens: int
    vocab_size: int
    max_running: int = 64
    max_queued: int = 512
    max_body_bytes: int = 8 * 2**20
    max_stream_bytes: int = 2**20
    api_key: str | None = None
    tool_format: str | None = None  # a name in `tools.TOOL_FORMATS`; None: read from the chat template

"""What the scripted server answers, and when: one script is one reply, with all that can go wrong in it."""

import random
from statistics import fmean
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wholecurve.errors import UserError

# How a reply can end other than well; what the server has done by then is in its log.
Fault = Literal[
    "never answers",  # the request is read, and that is all
    "closes at once",  # the connection ends without one byte
    "not http",  # bytes that are no status line
    "stalls",  # nothing more comes, and the connection stays
    "resets",  # TCP reset
    "closes",  # the connection ends between two events, without the end of the body
    "closes mid-event",  # the connection ends inside an event
    "truncated",  # the body ends well, without a finish reason and without [DONE]
    "garbage",  # bytes that are neither UTF-8 nor events
    "bad json",  # an event whose data is no JSON
    "no chunk",  # an event whose data is an object without choices, usage or error
    "error event",  # an event with `error`, as servers write it when the engine fails
]
FAULTS: tuple[str, ...] = get_args(Fault)
BEFORE_THE_HEAD = ("never answers", "closes at once", "not http")

_GAPS = 97  # so many different ones, in turn: streams do not fall into step

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Script(BaseModel):
    """One reply. Times are seconds from the moment when the whole request had been read.

    Chunk 0 is due at ``ttft_s``, chunk i ``gaps_s[(i - 1) % len]`` after the one before; it holds
    ``tokens_per_chunk[i % len]`` tokens. Each token is ``token_text``, numbered by ``{}`` where that is in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttft_s: Seconds = 0.0
    gaps_s: Annotated[tuple[Seconds, ...], Field(min_length=1)] = (0.0,)
    tokens_per_chunk: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1,)
    output_tokens: Count | None = None  # None: as many as the request asks for
    token_text: str = " t{}"
    chunks_per_write: Annotated[int, Field(ge=1)] = 1  # so many chunks, the last one's moment: a burst
    reasoning_tokens: Count = 0  # of the output, the first ones (chat)
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    tool_call_tokens: Count = 0  # of the output, the last ones: a name, then pieces of arguments (chat)
    role_chunk: bool = True  # chat begins with a chunk that holds the role alone, sent with the head
    empty_chunks: Count = 0  # chunks without text, sent with the head
    usage: Literal["as asked", "none", "last chunk", "empty text", "zero"] = "as asked"
    cached_tokens: Count | None = None  # of the prompt, as usage tells it
    finish_reason: str | None = "length"
    done_event: bool = True
    headers_s: Seconds = 0.0  # when status line and headers are sent
    status: Annotated[int, Field(ge=200, le=599)] = 200  # 400 and above: a JSON error, no stream
    content_length: Literal["chunked", "exact", "too long", "too short"] = "chunked"
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    comments: bool = False  # a line `: ping` before each event
    split_bytes: Count = 0  # above 0, each event is written in pieces of so many bytes
    split_gap_s: Seconds = 0.0  # between pieces; the last one keeps the chunk's moment or comes after it
    fault: Fault | None = None
    after_chunks: Count = 0  # content chunks that come before the fault

    @model_validator(mode="after")
    def _consistent(self) -> "Script":
        if self.fault in BEFORE_THE_HEAD and self.after_chunks:
            raise ValueError(f"after_chunks is {self.after_chunks}, but {self.fault!r} comes before any chunk")
        if self.chunks_per_write > 1 and self.split_bytes:
            raise ValueError("chunks_per_write and split_bytes exclude one another: a burst or pieces")
        if self.status >= 400 and self.fault is not None:
            raise ValueError(f"status {self.status} is a whole reply; it takes no fault ({self.fault!r})")
        return self

    def gap_s(self, chunk: int) -> float:
        """Scripted time between content chunk ``chunk`` - 1 and ``chunk``, for ``chunk`` of 1 and more."""
        return self.gaps_s[(chunk - 1) % len(self.gaps_s)]

    def chunk_sizes(self, wanted_tokens: int) -> list[int]:
        """Tokens of each content chunk of a reply to a request for ``wanted_tokens``; the last one may be cut."""
        left = wanted_tokens if self.output_tokens is None else self.output_tokens
        sizes: list[int] = []
        while left > 0:
            sizes.append(min(left, self.tokens_per_chunk[len(sizes) % len(self.tokens_per_chunk)]))
            left -= sizes[-1]
        return sizes


def script_from(document: object, where: str) -> Script:
    """A script from a JSON object; UserError names ``where`` and the first field that is wrong."""
    if not isinstance(document, dict):
        raise UserError(f"{where}: a script is a JSON object, not {type(document).__name__}")
    try:
        return Script(**document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "script"
        raise UserError(f"{where}: {field}: {first['msg']}") from None


def jittered(gap_s: float, spread: float = 0.5, seed: int = 0) -> tuple[float, ...]:
    """Gaps up to a share of ``spread`` shorter or longer than ``gap_s``, whose mean it is exactly."""
    draw = random.Random(seed)
    factors = [draw.uniform(1 - spread, 1 + spread) for _ in range(_GAPS)]
    return tuple(gap_s * factor / fmean(factors) for factor in factors)

"""A request while it is inside the engine."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wholecurve.engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from wholecurve.engine.cache.prefix import PrefixKeys, PrefixNode
    from wholecurve.engine.sampling import RequestSampling
    from wholecurve.engine.text import TextStream


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens and progress of one request.

    `token_ids` grows by sampling. `num_computed` counts tokens whose cache entries are written once every step that
    was launched has run; it grows when a step is launched and shrinks where drafts are rejected or at a preemption.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower goes first
    arrival: int = 0  # number of the request, in order of arrival
    cache_salt: str = ""  # only requests of the same salt share cached prefixes
    token_ids: list[int] = field(init=False)  # prompt + sampled tokens
    num_prompt: int = field(init=False)
    max_length: int = field(init=False)  # tokens that it may have at its end
    num_computed: int = 0
    num_pending: int = 0  # tokens sampled on the device that the host does not know yet; 0 unless steps overlap
    drafts: list[int] = field(default_factory=list)  # guesses of the next tokens, verified in the next step
    blocks: list[list[int]] = field(default_factory=list)  # per cache group, in order of position; -1 where given back
    num_cached: int = 0  # prompt tokens that the prefix cache served
    finish_reason: str | None = None  # "stop", "length" or "abort"
    num_preemptions: int = 0

    # set by the engine when it takes the request
    sampling: "RequestSampling | None" = None
    text: "TextStream | None" = None  # with a tokenizer
    end_token_ids: frozenset[int] = frozenset()  # tokens that finish it
    is_simple: bool = False  # a token of it is a token: no text, logprobs, penalties or grammar
    # set by the scheduler
    rank: tuple[int, int] = (0, 0)  # place among all sequences, lower goes first
    # set by the cache manager
    row: int = -1  # of the groups' tables, while it runs
    capacity: int = 0  # tokens that its blocks can hold
    prefix_keys: "PrefixKeys | None" = None
    prefix_node: "PrefixNode | None" = None  # what its next chunk will follow
    num_registered: int = 0  # chunks that others can find
    next_boundary: int = sys.maxsize  # tokens computed at which the next chunk, or state, can be registered
    branch: int = 0  # tokens after which a state is missed by those that begin alike; 0 for none

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.num_prompt = len(self.prompt_ids)
        self.max_length = self.num_prompt + self.params.max_new_tokens

    @property
    def num_sampled(self) -> int:
        """Sampled tokens that the host knows."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        """Tokens that the next steps must still run, drafts apart; 1 for a sequence that decodes."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether a single token is left to compute, and it was sampled."""
        return self.num_uncomputed == 1 and self.num_computed >= self.num_prompt

    @property
    def is_exhausted(self) -> bool:
        """Whether the tokens that are on their way are the last that it may have."""
        return len(self.token_ids) + self.num_pending >= self.max_length

    @property
    def max_stored(self) -> int:
        """Most tokens that it ever has in the cache: the last one that is sampled is never computed."""
        return self.max_length - 1

    def append(self, token: int) -> None:
        """Take one sampled token and decide whether the sequence is finished."""
        self.token_ids.append(token)
        if token in self.end_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_length:
            self.finish_reason = "length"

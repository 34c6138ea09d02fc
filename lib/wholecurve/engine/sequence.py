"""A request while it is inside the engine."""

from dataclasses import dataclass, field

from wholecurve.engine.sampling import SamplingParams, TokenSampler


@dataclass
class Sequence:
    """Tokens and progress of one request. `token_ids` grows by sampling; `num_computed` by the runner."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)  # prompt + sampled tokens
    num_computed: int = 0  # tokens whose keys and values are in the cache
    blocks: list[int] = field(default_factory=list)  # cache blocks, in order of position
    finish_reason: str | None = None  # "stop" or "length", set when finished
    sampler: TokenSampler | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.sampler = TokenSampler(self.params)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens that the next steps must still run; 1 for a sequence that decodes."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_computed >= len(self.prompt_ids)

    @property
    def max_tokens(self) -> int:
        """Longest that this sequence can get; the last sampled token is never stored, but may be counted on."""
        return len(self.prompt_ids) + self.params.max_new_tokens

    def append(self, token: int, eos_token_ids: tuple[int, ...]) -> None:
        """Take one sampled token and decide whether the sequence is finished."""
        self.token_ids.append(token)
        stops = self.params.stop_token_ids if self.params.ignore_eos else (*eos_token_ids, *self.params.stop_token_ids)
        if token in stops:
            self.finish_reason = "stop"
        elif self.num_sampled >= self.params.max_new_tokens:
            self.finish_reason = "length"

"""What sampling keeps of one request from its first token to its last."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from wholecurve.engine.sampling.params import SamplingParams
from wholecurve.errors import UserError
from wholecurve.kernels.sampling.reference import TINY

if TYPE_CHECKING:
    from wholecurve.engine.sampling.grammar import Grammars, Matcher

MOST_TEMPERATURE = torch.finfo(torch.float32).max


class RequestSampling:
    """State of one request, and what follows from its parameters once and for all.

    Tokens become part of it with `commit`, once they are certain: drafts that were not accepted never do, and what a
    preempted request had sampled stays. So nothing is ever taken back.

    seed: that of the parameters or a drawn one, as signed 64 bits. is_plain: the largest logit is all that matters.
    output_ids: committed tokens, kept only where penalties count them. matcher: of the grammar, if there is one.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        end_token_ids: Sequence[int] = (),
        grammars: "Grammars | None" = None,
    ):
        """prompt_ids: as penalties see them. end_token_ids: those of the model. grammars: compiles for its tokenizer.

        UserError for a token id outside the vocabulary, and for a grammar that is wrong or has no tokenizer.
        """
        check_vocabulary(params, vocab_size)
        self.params, self.prompt_ids, self.vocab_size = params, prompt_ids, vocab_size
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.seed -= 2**64 if self.seed >= 2**63 else 0
        self.temperature = min(params.temperature, MOST_TEMPERATURE)
        self.penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self.is_penalised = self.penalties != (1.0, 0.0, 0.0)
        self.bias = params.logit_bias or ()
        ends = () if params.ignore_eos else tuple(end_token_ids)
        self.end_token_ids = tuple(sorted({*ends, *params.stop_token_ids}))
        self.min_new_tokens = params.min_new_tokens if self.end_token_ids else 0
        self.output_ids: list[int] = []
        self.matcher: Matcher | None = None
        if params.grammar is not None:
            if grammars is None:
                raise UserError(f"grammar is a {params.grammar.kind}; it needs an engine with a tokenizer")
            self.matcher = grammars.matcher(params.grammar)
        self.is_greedy = self.temperature < TINY
        is_edited = bool(self.bias) or self.matcher is not None or self.min_new_tokens > 0
        self.is_plain = self.is_greedy and not (is_edited or self.is_penalised or params.logprobs is not None)

    @property
    def needs_history(self) -> bool:
        """Whether a token can only be chosen once all tokens before it are known on the host."""
        return self.is_penalised or self.matcher is not None

    @property
    def is_complete(self) -> bool:
        """Whether the grammar has come to its end, which finishes the request with "stop" whatever else holds."""
        return self.matcher is not None and self.matcher.is_terminated

    def masks_ends(self, output_index: int) -> bool:
        """Whether the token at this place of the answer must not end it."""
        return output_index < self.min_new_tokens

    def commit(self, token_ids: Sequence[int]) -> None:
        """Take tokens into the state: sampled ones, and of drafts only those that were accepted."""
        if self.is_penalised:
            self.output_ids.extend(token_ids)
        if self.matcher is not None:
            self.matcher.commit(token_ids)


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """UserError for a token id that the model does not have."""
    named = {"stop_token_ids": params.stop_token_ids, "logit_bias": [token for token, _ in params.logit_bias or ()]}
    for name, token_ids in named.items():
        if token_ids and max(token_ids) >= vocab_size:
            raise UserError(f"{name} names token {max(token_ids)}; it must be below the vocabulary size, {vocab_size}")

"""From logits to tokens: greedy, temperature and top-p, with a seed per request."""

from dataclasses import dataclass

import torch

from wholecurve.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. `temperature` 0 is greedy; `top_p` 1 keeps every token, 0 keeps the best one."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise UserError(f"temperature is {self.temperature}; it must be a finite number, 0 (greedy) or more")
        if not 0 <= self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must lie between 0 and 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UserError(f"seed is {self.seed}; it must lie between 0 and 2**64 - 1")


def top_p_filter(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero all but the smallest set of most probable tokens whose mass reaches `top_p`; at least one stays.

    probabilities [V], returned unnormalised [V]. A token is kept when the mass before it is below `top_p`;
    equal probabilities are taken in order of token id.
    """
    ordered, order = probabilities.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    keep = before < top_p
    keep[0] = True
    filtered = torch.zeros_like(probabilities)
    filtered[order[keep]] = ordered[keep]
    return filtered


class TokenSampler:
    """Draws the tokens of one request. Its random stream depends on the seed alone, not on the batch around it."""

    def __init__(self, params: SamplingParams):
        self.params = params
        self.generator = torch.Generator()
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)

    def sample(self, logits: torch.Tensor) -> int:
        """One token from logits [V]. Greedy ties go to the lowest token id."""
        if self.params.temperature == 0:
            return int(logits.argmax())
        # float64 on the host: the inverse of the cumulative sum must not run off its end by rounding.
        scaled = logits.double().cpu()
        probabilities = ((scaled - scaled.max()) / self.params.temperature).softmax(0)
        if self.params.top_p < 1:
            probabilities = top_p_filter(probabilities, self.params.top_p)
        cumulative = probabilities.cumsum(0)
        draw = torch.rand((), generator=self.generator, dtype=torch.float64) * cumulative[-1]
        index = int(torch.searchsorted(cumulative, draw, right=True))
        return min(index, int(probabilities.nonzero()[-1]))


def sample_batch(logits: torch.Tensor, samplers: list[TokenSampler]) -> list[int]:
    """One token per row of logits [B, V]; all greedy rows share one argmax."""
    greedy = logits.argmax(dim=-1).tolist()
    return [
        token if sampler.params.temperature == 0 else sampler.sample(row)
        for token, row, sampler in zip(greedy, logits, samplers, strict=True)
    ]

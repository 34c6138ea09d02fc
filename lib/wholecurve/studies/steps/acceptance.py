"""Drafts of a step study: how many tokens a step gives, and which drafts each request keeps in each step."""

from dataclasses import dataclass
from typing import get_args

import torch

from wholecurve.engine.speculation.rates import Reading, draft_rates, expected_tokens
from wholecurve.errors import UserError
from wholecurve.kernels.sampling.philox import verification_uniforms

READINGS = get_args(Reading)
MAX_DRAFTS = 63
# steps lie this far apart in the numbers of a request, so that contenders with other numbers of drafts share them
STEP_STRIDE = 64
REQUEST_STRIDE = 2**20


@dataclass(frozen=True)
class Acceptance:
    """`drafts` drafts a step at acceptance `rate`, read as conditional (accepted with `rate` once all before it are) or
    marginal (each accepted in a share `rate` of all steps).
    """

    drafts: int
    rate: float
    reading: Reading

    def __post_init__(self) -> None:
        if not 0 <= self.drafts <= MAX_DRAFTS:
            raise UserError(f"drafts is {self.drafts}; a step verifies 0 to {MAX_DRAFTS}")
        if not 0 <= self.rate <= 1:
            raise UserError(f"acceptance is {self.rate}; it must lie between 0 and 1")
        if self.reading not in READINGS:
            raise UserError(f"reading is {self.reading!r}; it must be {' or '.join(READINGS)}")

    @property
    def conditional(self) -> list[float]:
        """Conditional rates of the drafts, which say the same as `rate` in its reading."""
        return draft_rates(self.drafts, self.rate, self.reading)

    @property
    def tokens_per_step(self) -> float:
        """E: 1 + a + a² + … + aᵏ read as conditional, 1 + k · a read as marginal."""
        return expected_tokens(self.drafts, self.rate, self.reading)

    @property
    def label(self) -> str:
        """Such as "3 drafts at 75 % conditional (2.734 tokens per step)"."""
        if not self.drafts:
            return "no drafts (1 token per step)"
        drafts = f"{self.drafts} draft{'s' * (self.drafts > 1)}"
        return f"{drafts} at {self.rate:.4g} {self.reading} ({self.tokens_per_step:.4g} tokens per step)"

    def rates(self, requests: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Conditional rates of each request, [requests, drafts] float32, as `verification` takes them."""
        row = torch.tensor(self.conditional, dtype=torch.float32, device=device)
        return row.expand(requests, self.drafts).contiguous()

    def accepted(self, seeds: torch.Tensor, step: int) -> torch.Tensor:
        """Drafts that each request keeps in a step, [B] int64: what the numbers of (request, step) say.

        The same for every contender: a contender with more drafts or another rate meets the same numbers.
        """
        if not self.drafts:
            return torch.zeros(len(seeds), dtype=torch.int64)
        positions = step_number(step) + torch.arange(self.drafts)
        uniforms, _ = verification_uniforms(seeds.cpu()[:, None], positions[None, :])
        return (uniforms < self.rates(len(seeds))).cumprod(dim=1).sum(dim=1)


def request_seeds(requests: int, seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """One seed per request, [B] int64: request r has the same one in every batch."""
    return seed * REQUEST_STRIDE + torch.arange(requests, dtype=torch.int64, device=device)


def step_number(step: int) -> int:
    """What `verification` is told as the number of the first token of a step."""
    return step * STEP_STRIDE

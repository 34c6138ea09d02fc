"""What "k drafts at acceptance a" means: two readings, their rates, and the tokens that a step then gives."""

from typing import Literal, get_args

from wholecurve.errors import UserError
from wholecurve.kernels.verification.acceptance import conditional_rates, tokens_per_step

Reading = Literal["conditional", "marginal"]


def draft_rates(num_drafts: int, acceptance: float, reading: Reading) -> list[float]:
    """How often each of `num_drafts` drafts stays once all before it have.

    "conditional": every one with `acceptance`. "marginal": each of them in that share of all steps, which is possible
    only when they stay or go together: the first with `acceptance`, the others always. A prefix of the rates is what
    fewer drafts have. UserError for numbers that mean nothing.
    """
    if num_drafts < 0:
        raise UserError(f"{num_drafts} drafts; it must be 0 or more")
    if not 0 <= acceptance <= 1:
        raise UserError(f"acceptance {acceptance}; it must lie between 0 and 1")
    if reading == "conditional":
        return [acceptance] * num_drafts
    if reading == "marginal":
        return conditional_rates([acceptance] * num_drafts)
    raise UserError(f"reading {reading!r} of an acceptance; it must be one of {', '.join(get_args(Reading))}")


def expected_tokens(num_drafts: int, acceptance: float, reading: Reading) -> float:
    """E, the mean tokens of a step: 1 + a + a² + … + aᵏ when conditional, 1 + k · a when marginal."""
    return tokens_per_step(draft_rates(num_drafts, acceptance, reading))

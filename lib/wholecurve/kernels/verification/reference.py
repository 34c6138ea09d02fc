"""Speculative verification, the definition, request by request in float64.

Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, algorithm 1; Chen et al. 2023,
https://arxiv.org/abs/2302.01318, algorithm 2.
"""

import torch

from wholecurve.kernels.sampling.philox import verification_uniforms
from wholecurve.kernels.sampling.reference import TINY, best, chances, draw, row_parameters, without_nan


def verification_reference(
    draft_tokens,
    target_logits,
    temperature,
    seeds,
    steps,
    *,
    draft_probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    acceptance_rates=None,
):
    """See `wholecurve.kernels.verification.verification`."""
    num_requests, positions, vocab = target_logits.shape
    device = target_logits.device
    tokens = torch.full((num_requests, positions), -1, dtype=torch.int64, device=device)
    num_accepted = torch.zeros(num_requests, dtype=torch.int32, device=device)
    for request in range(num_requests):
        heat, *limits = row_parameters(request, temperature, top_k, top_p, min_p)
        for position in range(positions):
            accept_with, draw_with = verification_uniforms(seeds[request], steps[request] + position)
            values = without_nan(target_logits[request, position].double())
            target = target_chances(values, heat, limits)
            draft = int(draft_tokens[request, position]) if position < positions - 1 else -1
            if draft < 0:  # all drafts stay
                tokens[request, position] = draw(target, draw_with)
                break
            if acceptance_rates is not None:
                if not accept_with < acceptance_rates[request, position]:
                    tokens[request, position] = draw(target, draw_with)
                    break
            else:
                proposal = draft_chances(draft, vocab, None if draft_probs is None else draft_probs[request, position])
                if not stays(accept_with, target, proposal.to(target), draft, heat):
                    added = draw(residual(target, proposal.to(target), heat), draw_with)
                    tokens[request, position] = added if added >= 0 else best(values)
                    break
            tokens[request, position] = draft
            num_accepted[request] += 1
    return tokens, num_accepted


def target_chances(values, temperature, limits):
    """The target's chances [V]: all at the best token for temperature 0; zeros where no token can be chosen."""
    if best(values) < 0:
        return torch.zeros_like(values)
    if temperature < TINY:
        return torch.zeros_like(values).index_fill(0, torch.tensor([best(values)], device=values.device), 1.0)
    weights = chances(values, temperature, *limits)
    return weights / weights.sum()


def draft_chances(draft, vocab, draft_probs):
    """The chances [V] that a drafted token was drawn with, all at the token itself where it was not drawn."""
    if draft_probs is not None:
        return draft_probs
    return torch.zeros(vocab, dtype=torch.float64).index_fill(0, torch.tensor([draft]), 1.0)


def stays(uniform, target, proposal, draft, temperature):
    """Whether a drafted token is accepted, uniform < p / q without the quotient."""
    if temperature < TINY:
        return target[draft] == 1
    return uniform * proposal[draft] < target[draft]


def residual(target, proposal, temperature):
    """What the chances of a rejected draft left of the target's; of a greedy target nothing is taken."""
    return target if temperature < TINY else (target - proposal).clamp(min=0)

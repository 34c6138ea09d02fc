"""The permutation as the laboratory sees it."""

import torch
import torch.nn.functional as F

from wholecurve.kernels.moe_permute import FORMS, moe_permute, spec
from wholecurve.kernels.moe_permute.reference import moe_permute_reference
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, num_tokens, top_k, hidden, num_experts, dropped=0, first_expert=0, dtype="bfloat16"):
    """Arguments of `moe_permute` for a case: random experts, `dropped` of the slots with none that is here.

    The dropped are −1, the expert behind the last one here, and another rank's, in turns.
    """
    experts = inputs.integers(first_expert, first_expert + num_experts, num_tokens * top_k, dtype="int32")
    places = inputs.permutation(num_tokens * top_k)[:dropped]
    if not inputs.is_meta:
        experts[places[::3]] = -1
        experts[places[1::3]] = first_expert + num_experts
        experts[places[2::3]] = first_expert + num_experts + 7
    return {
        "x": inputs.normal(num_tokens, hidden, dtype=dtype),
        "experts": experts.view(num_tokens, top_k),
        "num_experts": num_experts,
        "first_expert": first_expert,
    }


def expected(x, experts, num_experts, first_expert=0):
    """Copied rows and whole numbers, exact."""
    permuted, *maps = moe_permute_reference(x, experts, num_experts, first_expert)
    return Expected(permuted.double(), ulps=0.0), *(Expected(numbers) for numbers in maps)


def eager(x, experts, num_experts, first_expert=0):
    """What a model written in plain torch does: select expert by expert, as transformers does, and concatenate."""
    local = experts.long() - first_expert
    local = local.where((local >= 0) & (local < num_experts), num_experts)
    mask = F.one_hot(local, num_experts + 1).permute(2, 0, 1)
    return torch.cat([x[torch.where(mask[expert])[0]] for expert in range(num_experts)])


SUBJECT = Subject("moe_permute", moe_permute, FORMS, spec, make, expected, baselines={"eager": eager})

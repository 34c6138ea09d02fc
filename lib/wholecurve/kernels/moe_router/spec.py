"""Cost of the router, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

SCORINGS = ("softmax", "sigmoid", "sqrt_softplus")
MAX_EXPERTS = 4096
BIAS_BYTES, WEIGHT_BYTES, EXPERT_BYTES = 4, 4, 4
# logits of one program, padding included
CONFIGS = {
    "512 logits": {"logits": 512, "num_warps": 1},
    "1024 logits": {"logits": 1024, "num_warps": 4},
}
QWEN3 = {"num_experts": 128, "top_k": 8, "scoring": "softmax"}
GPT_OSS = {"num_experts": 128, "top_k": 4, "scoring": "softmax"}
DEEPSEEK_V3 = {"num_experts": 256, "top_k": 8, "scoring": "sigmoid", "has_bias": True, "num_groups": 8, "top_groups": 4}
DEEPSEEK_V3 |= {"scale": 2.5}
DEEPSEEK_V4 = {"num_experts": 384, "top_k": 6, "scoring": "sqrt_softplus", "has_bias": True, "scale": 1.5}

# edges around the rows of a program (4 of 128 experts, 1 from 257 on), groups and experts that are no powers of two
TESTS = [
    {"num_tokens": 0} | QWEN3,
    *({"num_tokens": num_tokens} | QWEN3 for num_tokens in (1, 3, 4, 5)),
    {"num_tokens": 3} | QWEN3 | {"renormalize": False, "scale": 0.5},
    {"num_tokens": 3} | QWEN3 | {"num_experts": 127, "has_bias": True},
    {"num_tokens": 2} | QWEN3 | {"num_experts": 129, "top_k": 1},
    {"num_tokens": 7} | DEEPSEEK_V3,
    {"num_tokens": 9, "num_experts": 60, "top_k": 4, "scoring": "sigmoid", "num_groups": 6, "top_groups": 2},
    {"num_tokens": 9, "num_experts": 12, "top_k": 6, "num_groups": 3, "top_groups": 2, "has_bias": True},
    {"num_tokens": 5, "num_experts": 8, "top_k": 2, "scoring": "sigmoid", "num_groups": 1, "top_groups": 1},
    {"num_tokens": 3} | DEEPSEEK_V4,
    {"num_tokens": 2, "num_experts": 512, "top_k": 10},
    {"num_tokens": 33, "num_experts": 4, "top_k": 4, "scoring": "sqrt_softplus"},
    {"num_tokens": 2, "num_experts": 1, "top_k": 1},
    # every expert that takes part is chosen, negative logits too
    {"num_tokens": 5, "num_experts": 7, "top_k": 7},
    {"num_tokens": 5, "num_experts": 15, "top_k": 10, "scoring": "sigmoid", "num_groups": 3, "top_groups": 2},
]
BENCH = {
    f"{name}-{num_tokens}": {"num_tokens": num_tokens} | shape
    for name, shape in (
        ("qwen3", QWEN3),
        ("gpt-oss", GPT_OSS),
        ("deepseek-v3", DEEPSEEK_V3),
        ("deepseek-v4", DEEPSEEK_V4),
    )
    for num_tokens in (64, 8192)
}


def tile(num_experts, num_groups=None, logits=512, num_warps=1):
    """(rows, columns of groups, columns of one group, warps) of one program; never dependent on the tokens."""
    groups = num_groups or 1
    block_groups, block_members = next_power_of_2(groups), next_power_of_2(num_experts // groups)
    return max(1, logits // (block_groups * block_members)), block_groups, block_members, num_warps


def cost(
    num_tokens,
    num_experts,
    top_k,
    scoring="softmax",
    has_bias=False,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call.

    flops: per logit what its score takes beside exponentials, logarithms and roots (softmax: the difference to the
    maximum, its sum, the quotient; sigmoid: a sum, a quotient; √softplus: the two sums) and the sum with a bias; per
    chosen weight its sum and quotient, and the product with `scale`. Comparisons are not counted.
    """
    logits = num_tokens * num_experts
    programs = ceil_div(num_tokens, tile(num_experts, num_groups, **(config or {}))[0])
    per_logit = {"softmax": 3, "sigmoid": 2, "sqrt_softplus": 2}[scoring] + has_bias
    per_group = num_groups if (num_groups or 1) > 1 else 0
    bias = num_experts * BIAS_BYTES * has_bias
    chosen = num_tokens * top_k * (WEIGHT_BYTES + EXPERT_BYTES)
    return Cost(
        bytes_min=logits * ITEM_BYTES[dtype] + bias * (num_tokens > 0) + chosen,
        flops=logits * per_logit + num_tokens * (per_group + top_k * (2 * renormalize + 1)),
        load_bytes=logits * ITEM_BYTES[dtype] + programs * bias,
        store_bytes=chosen,
        flops_issued=0,
    )

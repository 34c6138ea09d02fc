"""Cost of the gated activation, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, next_power_of_2

# elements of a row that one program handles
CONFIGS = {f"{elements} elements": {"elements": elements} for elements in (512, 1024, 2048, 4096)}

# per output: silu has two products, a sum and a division around its exponential; gelu four products and a sum around
# its erf; gelu_tanh seven products and two sums around its tanh
FLOPS = {"silu": 4, "gelu": 5, "gelu_tanh": 9}

# edges around the tile and around powers of two
TESTS = [
    {"num_tokens": num_tokens, "intermediate": intermediate}
    for num_tokens, intermediate in [
        *((0, 128), (1, 1), (1, 127), (9, 128), (8, 129), (129, 3), (2, 1023), (3, 1024), (2, 1025), (1, 4097)),
    ]
]
TESTS += [
    {"num_tokens": 4, "intermediate": 192} | options
    for options in [
        {"activation": "gelu"},
        {"activation": "gelu_tanh"},
        {"limit": 1.5},
        {"limit": 1.3, "alpha": 1.702},
        {"alpha": 1.702},
        {"activation": "gelu_tanh", "limit": 1.3},
        # exp(12) is no number of fp16, its silu is one
        {"gate_shift": -12.0, "dtype": "float16"},
    ]
]
BENCH = {f"{num_tokens}x14336": {"num_tokens": num_tokens, "intermediate": 14336} for num_tokens in (1, 64, 8192)} | {
    "gelu_tanh-8192x15360": {"num_tokens": 8192, "intermediate": 15360, "activation": "gelu_tanh"},  # Gemma 3 12B
    "limit-49152x2304": {"num_tokens": 49152, "intermediate": 2304, "limit": 10.0},  # experts of DeepSeek V4.1
    "alpha-32768x2880": {"num_tokens": 32768, "intermediate": 2880, "limit": 7.0, "alpha": 1.702},  # gpt-oss
}


def tile(intermediate, elements=1024):
    """(elements, warps) of one program of the Triton form; never dependent on the number of tokens."""
    block = min(elements, next_power_of_2(intermediate))
    return block, 4 if block <= 2048 else 8


def cost(
    num_tokens,
    intermediate,
    activation="silu",
    limit=None,
    alpha=None,
    gate_shift=0.0,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call: both halves are read once and the output is written once. Comparisons are not flops.

    gate_shift: added to the normal numbers of the gate, which costs nothing.
    """
    elements, item = num_tokens * intermediate, ITEM_BYTES[dtype]
    return Cost(
        bytes_min=3 * elements * item,
        flops=(FLOPS[activation] + 2 * (alpha is not None)) * elements,
        load_bytes=2 * elements * item,
        store_bytes=elements * item,
        flops_issued=0,
    )

"""Cost of SwiGLU, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost

TESTS = [
    {"num_tokens": num_tokens, "intermediate": intermediate}
    for num_tokens, intermediate in [(0, 128), (1, 1), (1, 127), (127, 128), (128, 129), (129, 3)]
]
BENCH = [{"num_tokens": num_tokens, "intermediate": 14336} for num_tokens in (1, 64, 8192)]


def cost(num_tokens, intermediate, item_bytes):
    """Cost of one call. flops per output: two products, a sum and a division around the exponential."""
    elements = num_tokens * intermediate
    return Cost(bytes_min=3 * elements * item_bytes, flops=4 * elements)

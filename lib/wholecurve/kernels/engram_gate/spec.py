"""Cost of the gate, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

MAX_WIDTH = 16384
# elements of one program: tokens that share the weights of a stream
CONFIGS = {"8192 elements": {"elements": 8192}, "16384 elements": {"elements": 16384}}

# edges around powers of two and around the 64 tokens of width 128 that share a program
TESTS = [
    {"num_tokens": num_tokens, "streams": streams, "width": width}
    for num_tokens, streams, width in [
        *((0, 4, 128), (1, 1, 1), (3, 4, 2), (2, 4, 127), (63, 1, 128), (64, 2, 128), (65, 1, 128), (5, 3, 129)),
        *((3, 4, 1024), (2, 2, 5120), (1, 1, 8193)),
    ]
]
BENCH = {  # DeepSeek-V4.1
    f"{num_tokens}x4x5120": {"num_tokens": num_tokens, "streams": 4, "width": 5120} for num_tokens in (64, 8192)
}


def tile(width, elements=8192):
    """(tokens, columns, warps) of one program; never dependent on the number of tokens."""
    columns = next_power_of_2(width)
    tokens = max(1, elements // columns)
    return tokens, columns, 4 if tokens * columns <= 4096 else 8 if tokens * columns <= 8192 else 16


def cost(num_tokens, streams, width, dtype="bfloat16", config=None):
    """Cost of one call. The value of a token is read once per stream, the weights once per program.

    flops per element: two squares and their sums, two products with weights, the product of both and its sum, and the
    product of gate and value with its sum. What a whole stream needs once is not counted.
    """
    item, elements = ITEM_BYTES[dtype], num_tokens * streams * width
    programs = ceil_div(num_tokens, tile(width, **(config or {}))[0])  # per stream
    return Cost(
        bytes_min=(3 * elements + num_tokens * width + 2 * streams * width * (num_tokens > 0)) * item,
        flops=10 * elements,
        load_bytes=(3 * elements + 2 * programs * streams * width) * item,
        store_bytes=elements * item,
        flops_issued=0,
    )

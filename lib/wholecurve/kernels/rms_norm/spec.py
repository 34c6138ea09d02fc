"""Cost of RMSNorm, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost, ceil_div, next_power_of_2

MAX_HIDDEN = 65536
ELEMENTS_PER_PROGRAM = 2048

# edges around the tile (16 rows of 128, 1 row from 2048 on) and around powers of two
TESTS = [
    {"num_tokens": num_tokens, "hidden": hidden}
    for num_tokens, hidden in [
        *((0, 128), (1, 1), (3, 2), (1, 128), (15, 128), (16, 128), (17, 128)),
        *((5, 127), (5, 129), (70, 64), (2, 2047), (2, 2048), (3, 2049), (2, 7168), (1, 16385)),
    ]
]
BENCH = [
    {"num_tokens": num_tokens, "hidden": hidden} for hidden in (576, 4096, 7168) for num_tokens in (1, 64, 1024, 8192)
] + [{"num_tokens": 8192 * 64, "hidden": 128}]


def tile(hidden):
    """(rows, columns, warps) of one program of the Triton form; never dependent on the number of tokens."""
    block = next_power_of_2(hidden)
    return max(1, ELEMENTS_PER_PROGRAM // block), block, 4 if block <= 4096 else 8 if block <= 16384 else 16


def cost(num_tokens, hidden, item_bytes, has_residual=False):
    """Cost of one call. A residual adds one tensor read and one written.

    flops per element: the square, its sum, the product with 1/rms and the product with the weight (and the
    residual sum); per row the division by the width and the sum with eps. The square roots are not counted.
    """
    elements = num_tokens * hidden
    moved = (4 if has_residual else 2) * elements * item_bytes
    programs = ceil_div(num_tokens, tile(hidden)[0])
    return Cost(
        bytes_min=moved + hidden * item_bytes * (num_tokens > 0),
        bytes_model=moved + programs * hidden * item_bytes,
        flops=(5 if has_residual else 4) * elements + 2 * num_tokens,
        flops_issued=0,
    )

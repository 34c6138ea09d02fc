"""Cost of the rotary embedding, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost

TESTS = [
    {"num_tokens": num_tokens, "heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    for num_tokens, heads, head_dim, rotary_dim in [
        (0, 2, 64, 64),
        (1, 1, 2, 2),
        (127, 3, 64, 64),
        (128, 9, 64, 32),
        (129, 1, 80, 80),
    ]
]
BENCH = [{"num_tokens": num_tokens, "heads": 40, "head_dim": 128, "rotary_dim": 128} for num_tokens in (1, 64, 8192)]


def cost(num_tokens, heads, head_dim, rotary_dim, item_bytes, distinct_positions=None, table_item_bytes=4):
    """Cost of one call that returns a new tensor: all channels are read and written, the unrotated ones are
    copied.

    distinct_positions: how many rows of the tables are read, None for one per token. Positions are 8 bytes.
    flops: four products and two sums per rotated pair.
    """
    distinct = num_tokens if distinct_positions is None else distinct_positions
    return Cost(
        bytes_min=2 * num_tokens * heads * head_dim * item_bytes
        + distinct * rotary_dim * table_item_bytes
        + 8 * num_tokens,
        flops=6 * num_tokens * heads * rotary_dim // 2,
    )

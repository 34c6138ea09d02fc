"""Cost of storing keys and values, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost

TESTS = [
    {"num_tokens": num_tokens, "num_kv_heads": kv_heads, "head_dim": 64, "block_size": block_size}
    for num_tokens, kv_heads, block_size in [(0, 1, 16), (1, 1, 1), (127, 3, 16), (128, 2, 5), (129, 1, 128)]
]
BENCH = [
    {"num_tokens": num_tokens, "num_kv_heads": 8, "head_dim": 128, "block_size": 16} for num_tokens in (1, 64, 8192)
]


def cost(num_tokens, num_kv_heads, head_dim, item_bytes, skipped=0):
    """Cost of one call. skipped: tokens whose slot is −1; of those only the slot (8 bytes) is read."""
    moved = 2 * (num_tokens - skipped) * num_kv_heads * head_dim * item_bytes
    return Cost(bytes_min=2 * moved + 8 * num_tokens, flops=0)

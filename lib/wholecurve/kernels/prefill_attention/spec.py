"""Cost of chunked prefill attention, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost, ceil_div

# (new tokens, context) per sequence: empty ones first, between and last, no prefix, one new token, page edges
TESTS = [
    {
        "chunks": chunks,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "block_size": block_size,
    }
    for chunks, heads, kv_heads, head_dim, block_size in [
        ([], 2, 1, 64, 16),
        ([(0, 0), (0, 5)], 2, 1, 64, 16),
        ([(0, 4), (3, 3), (0, 9), (2, 5), (0, 0)], 4, 2, 64, 16),
        ([(1, 1), (1, 40), (15, 15), (16, 32), (17, 33)], 9, 3, 64, 16),
        ([(127, 128), (128, 128), (129, 300)], 7, 1, 64, 5),
        ([(5, 3), (4, 1)], 2, 2, 80, 1),
    ]
]
BENCH = [
    {"chunks": [chunk], "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}
    for chunk in [(512, 512), (2048, 2048), (2048, 16384), (8192, 8192)]
]


def cost(chunks, num_heads, num_kv_heads, head_dim, block_size, item_bytes, index_bytes=4):
    """Cost of one call. chunks: (new tokens, context) per sequence; index_bytes: of a page-table entry."""
    new_tokens = sum(new for new, _ in chunks)
    read = [context for new, context in chunks if new]
    return Cost(
        bytes_min=2 * sum(read) * num_kv_heads * head_dim * item_bytes
        + 2 * new_tokens * num_heads * head_dim * item_bytes
        + index_bytes * sum(ceil_div(context, block_size) for context in read),
        flops=4 * sum(seen_pairs(new, context) for new, context in chunks) * num_heads * head_dim,
    )


def seen_pairs(new, context):
    """(query, key) pairs under the bottom-right causal mask; queries beyond the context see nothing."""
    seeing = min(new, context)
    return seeing * (2 * context - seeing + 1) // 2

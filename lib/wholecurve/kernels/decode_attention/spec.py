"""Cost of paged decode attention, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost, ceil_div, next_power_of_2

SPLIT_TOKENS = 256
BLOCK_TOKENS = 64

# contexts around a page (16), a tile (64) and a split (256); groups 1, 2, 3, 7, 8; head sizes that pad
TESTS = [
    {
        "contexts": contexts,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "block_size": block_size,
    }
    for contexts, heads, kv_heads, head_dim, block_size in [
        ([1], 1, 1, 64, 16),
        ([0], 2, 2, 64, 16),
        ([], 2, 1, 64, 16),
        ([15, 16, 17, 0, 33], 9, 3, 64, 16),
        ([127, 1, 128, 129], 7, 1, 64, 16),
        ([63, 64, 65], 8, 1, 80, 1),
        ([255, 256, 257, 520], 4, 2, 96, 5),
        ([70, 3], 14, 2, 128, 128),
        ([66, 300], 3, 3, 256, 16),
    ]
]
BENCH = [
    {"contexts": [context] * batch, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}
    for context in (1024, 8192)
    for batch in (1, 16, 64)
] + [
    {"contexts": [context] * batch, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 16}
    for context in (160, 1024)
    for batch in (1, 16)
]


def tile(group, head_dim):
    """(query heads, channels) of one program of the Triton form; their products are at least 16 wide."""
    return max(16, next_power_of_2(group)), max(16, next_power_of_2(head_dim))


def cost(
    contexts,
    num_heads,
    num_kv_heads,
    head_dim,
    block_size,
    item_bytes,
    index_bytes=4,
    table_tokens=None,
    split_tokens=SPLIT_TOKENS,
):
    """Cost of one call.

    contexts: cached tokens per sequence. index_bytes: of a table entry and of a length. table_tokens: tokens
    that one row of the block table can name (the grid of the Triton form is made for it); None for the
    longest context. bytes_model of the Triton form: the query once per split, one table entry per token and
    key-value head, a length per program of both kernels, and the partial results of every split written and
    read in fp32.
    """
    tokens, sequences = sum(contexts), len(contexts)
    pages = sum(ceil_div(context, block_size) for context in contexts)
    splits = sum(ceil_div(context, split_tokens) for context in contexts)
    programs = num_kv_heads * ceil_div(table_tokens or max(contexts, default=0), split_tokens) + num_heads
    kv_bytes = 2 * tokens * num_kv_heads * head_dim * item_bytes
    row_bytes = num_heads * head_dim * item_bytes  # the query or the output of one sequence
    return Cost(
        bytes_min=kv_bytes + 2 * sequences * row_bytes + index_bytes * (pages + sequences),
        bytes_model=kv_bytes
        + row_bytes * (sequences + splits)
        + index_bytes * (tokens * num_kv_heads + sequences * programs)
        + 2 * splits * num_heads * (head_dim + 2) * 4,
        flops=4 * tokens * num_heads * head_dim,
        flops_issued=issued_flops(contexts, num_heads, num_kv_heads, head_dim, split_tokens),
    )


def issued_flops(contexts, num_heads, num_kv_heads, head_dim, split_tokens):
    """Products of the padded tiles: two per tile of BLOCK_TOKENS tokens."""
    block_group, block_dim = tile(num_heads // num_kv_heads, head_dim)
    tiles = 0
    for context in contexts:
        full, rest = divmod(context, split_tokens)
        tiles += full * ceil_div(split_tokens, BLOCK_TOKENS) + ceil_div(rest, BLOCK_TOKENS)
    return 2 * 2 * tiles * num_kv_heads * block_group * BLOCK_TOKENS * block_dim

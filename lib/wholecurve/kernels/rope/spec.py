"""Cost of the rotary embedding, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

# elements of one program: so many heads of a token share one
CONFIGS = {f"{elements} elements": {"elements": elements} for elements in (1024, 2048, 4096)}

# edges around the heads of one program (32 of 64 channels, 16 of 128) and around powers of two
TESTS = [
    {"num_tokens": num_tokens, "heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    for num_tokens, heads, head_dim, rotary_dim in [
        *((0, 2, 64, 64), (1, 1, 2, 2), (2, 31, 64, 64), (3, 32, 64, 64), (2, 33, 64, 64), (19, 9, 64, 32)),
        *((7, 1, 80, 80), (2, 17, 128, 128), (3, 2, 130, 126), (2, 3, 12, 6)),
    ]
]
TESTS += [
    {"num_tokens": 5, "heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim} | options
    for heads, head_dim, rotary_dim, options in [
        (3, 64, 64, {"layout": "interleaved"}),
        (3, 64, 64, {"inverse": True}),
        (17, 40, 12, {"layout": "interleaved", "offset": 28, "inverse": True}),
        (5, 40, 24, {"offset": 16}),
        (2, 40, 20, {"layout": "interleaved", "offset": 3}),
        (3, 64, 64, {"table_dtype": "input"}),
        (3, 48, 32, {"layout": "interleaved", "table_dtype": "input"}),
        (2, 64, 64, {"index_dtype": "int32"}),
    ]
]
BENCH = {
    f"{num_tokens}x40x128": {"num_tokens": num_tokens, "heads": 40, "head_dim": 128, "rotary_dim": 128}
    for num_tokens in (1, 64, 8192)
} | {
    # the output of DeepSeek V4's attention, turned back: the last 64 channels of each head
    f"un-rotate-{num_tokens}x64x512": {
        "num_tokens": num_tokens,
        "heads": 64,
        "head_dim": 512,
        "rotary_dim": 64,
        "layout": "interleaved",
        "inverse": True,
        "offset": 448,
    }
    for num_tokens in (64, 8192)
}


def tile(heads, head_dim, pairs, elements=2048):
    """(heads, pairs, other channels, warps) of one program of the Triton form, powers of two (0 other channels)."""
    block_pairs = next_power_of_2(pairs)
    block_rest = next_power_of_2(head_dim - 2 * pairs) if head_dim > 2 * pairs else 0
    fitting = max(1, elements // (2 * block_pairs + block_rest))
    block_heads = min(next_power_of_2(heads), 1 << (fitting.bit_length() - 1))
    return block_heads, block_pairs, block_rest, 4 if elements <= 2048 else 8


def cost(
    num_tokens,
    heads,
    head_dim,
    rotary_dim,
    layout="half",
    inverse=False,
    offset=0,
    table_dtype="float32",
    index_dtype="int64",
    dtype="bfloat16",
    config=None,
):
    """Cost of one call, which returns a new tensor: all channels are read and written, unrotated ones are copied.

    Every token has a position of its own, so that its row of both tables is read from memory. table_dtype: a dtype, or
    "input" for the dtype of x. flops: four products and two sums per rotated pair.
    """
    moved = num_tokens * heads * head_dim * ITEM_BYTES[dtype]
    row = rotary_dim * ITEM_BYTES[dtype if table_dtype == "input" else table_dtype]  # of cos and of sin, rd/2 each
    programs = num_tokens * ceil_div(heads, tile(heads, head_dim, rotary_dim // 2, **(config or {}))[0])
    return Cost(
        bytes_min=2 * moved + num_tokens * (row + ITEM_BYTES[index_dtype]),
        flops=6 * num_tokens * heads * rotary_dim // 2,
        load_bytes=moved + programs * (row + ITEM_BYTES[index_dtype]),
        store_bytes=moved,
        flops_issued=0,
    )

"""Cost of the norm and rotation of q and k heads, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div
from wholecurve.kernels.rope.spec import CONFIGS as ROPE_CONFIGS
from wholecurve.kernels.rope.spec import tile

CONFIGS = ROPE_CONFIGS

# edges around the heads of one program (32 of 64 channels, 16 of 128) and around powers of two
TESTS = [
    {"num_tokens": num_tokens, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    for num_tokens, heads, kv_heads, head_dim in [
        *((0, 2, 1, 64), (1, 1, 1, 2), (3, 9, 3, 64), (2, 31, 1, 64), (2, 32, 32, 64), (2, 33, 3, 64)),
        *((5, 4, 2, 80), (2, 17, 17, 128)),
    ]
]
TESTS += [
    {"num_tokens": 3, "num_heads": 5, "num_kv_heads": 2, "head_dim": 64} | options
    for options in [
        {"rotary_dim": 16},
        {"weight": "float32", "style": "gemma", "rotary_dim": 24, "offset": 40},
        {"weight": "float32", "layout": "interleaved"},
        {"weight": "none", "layout": "interleaved", "rotary_dim": 20, "offset": 3},
        {"style": "gemma", "table_dtype": "input"},
        {"weight": "none", "style": "gemma"},
        {"x_scale": 1e-3, "rotary_dim": 32},
        {"x_scale": 0.0, "rotary_dim": 32},
    ]
]
BENCH = {
    f"{num_tokens}x32+8x128": {"num_tokens": num_tokens, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    for num_tokens in (1, 64, 8192)
} | {
    # the gated attention of Qwen3-Next: a quarter of each head turns
    f"partial-{num_tokens}x16+2x256": {
        "num_tokens": num_tokens,
        "num_heads": 16,
        "num_kv_heads": 2,
        "head_dim": 256,
        "rotary_dim": 64,
        "style": "gemma",
    }
    for num_tokens in (64, 8192)
}


def cost(
    num_tokens,
    num_heads,
    num_kv_heads,
    head_dim,
    rotary_dim=None,
    weight="input",
    style="llama",
    layout="half",
    offset=0,
    table_dtype="float32",
    x_scale=1.0,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call, which reads and writes every channel of q and k once.

    rotary_dim: None for the whole head. weight: of both, "input" (the dtype of q), "float32" or "none". Every token has
    a position of its own, so that its row of both tables is read from memory. flops: those of the norm per channel (its
    square, the sum of squares, the product with 1/rms, the product with the weight) and per head (the division and the
    sum with eps; the square root is not counted), four products and two sums per rotated pair, and 1 + w of gemma.
    """
    heads, turned, item = num_heads + num_kv_heads, rotary_dim or head_dim, ITEM_BYTES[dtype]
    weight_bytes = {"input": item, "float32": 4, "none": 0}[weight] * head_dim
    row = turned * ITEM_BYTES[dtype if table_dtype == "input" else table_dtype]  # of cos and of sin, rd/2 each
    block_heads = tile(num_heads, head_dim, turned // 2, **(config or {}))[0]
    programs = num_tokens * (ceil_div(num_heads, block_heads) + ceil_div(num_kv_heads, block_heads))
    moved = num_tokens * heads * head_dim * item
    per_head = (3 + (weight != "none")) * head_dim + 2 + 6 * turned // 2
    return Cost(
        bytes_min=2 * moved + num_tokens * (row + 8) + 2 * weight_bytes * (num_tokens > 0),
        flops=num_tokens * heads * per_head + 2 * head_dim * (style == "gemma" and weight != "none"),
        load_bytes=moved + programs * (row + 8 + weight_bytes),
        store_bytes=moved,
        flops_issued=0,
    )

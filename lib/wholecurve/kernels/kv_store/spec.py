"""Cost of storing keys and values, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, next_power_of_2

CONFIGS = {"2 warps": {"num_warps": 2}, "4 warps": {"num_warps": 4}}

TESTS = [
    {"num_tokens": num_tokens, "num_kv_heads": kv_heads, "head_dim": 64, "block_size": block_size}
    for num_tokens, kv_heads, block_size in [(0, 1, 16), (1, 1, 1), (33, 3, 16), (20, 2, 5), (17, 1, 128), (9, 5, 64)]
]
TESTS += [
    {"num_tokens": 11, "num_kv_heads": 3, "head_dim": 40, "block_size": 4} | options
    for options in [
        {"skipped": 4},
        {"skipped": 11},
        {"head_dim": 1},
        {"head_dim": 24, "v_head_dim": 17},
        {"pages": "interleaved"},
        {"cache_dtype": "float8_e4m3fn"},
        {"cache_dtype": "float8_e4m3fn", "scale": "float", "skipped": 2},
        {"cache_dtype": "float8_e4m3fn", "scale": "per head", "skipped": 1, "v_head_dim": 65},
    ]
]
BENCH = {
    f"{num_tokens}x8x128": {"num_tokens": num_tokens, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}
    for num_tokens in (1, 64, 8192)
} | {
    f"fp8-{num_tokens}x8x128": {
        "num_tokens": num_tokens,
        "num_kv_heads": 8,
        "head_dim": 128,
        "block_size": 16,
        "cache_dtype": "float8_e4m3fn",
        "scale": "per head",
    }
    for num_tokens in (64, 8192)
}


def tile(num_kv_heads, head_dim, num_warps=4):
    """(heads, head size, warps) of one program of the Triton form."""
    return next_power_of_2(num_kv_heads), next_power_of_2(head_dim), num_warps


def cost(
    num_tokens,
    num_kv_heads,
    head_dim,
    block_size,
    v_head_dim=None,
    skipped=0,
    pages="plain",
    cache_dtype="input",
    scale="none",
    dtype="bfloat16",
    config=None,
):
    """Cost of one call.

    v_head_dim: None for that of k. skipped: tokens whose slot is −1; of those only the slot (8 bytes) is read. pages:
    "plain" or "interleaved" (k and v of a page side by side), which costs the same. cache_dtype: a dtype, or "input"
    for that of k. scale: "none", "float" or "per head" (float32, read for every token). flops: the division.
    """
    stored, channels = num_tokens - skipped, num_kv_heads * (head_dim + (v_head_dim or head_dim))
    read = stored * channels * ITEM_BYTES[dtype]
    written = stored * channels * ITEM_BYTES[dtype if cache_dtype == "input" else cache_dtype]
    scales = 2 * num_kv_heads * 4 * (scale == "per head")
    return Cost(
        bytes_min=read + written + 8 * num_tokens + scales * (stored > 0),
        flops=stored * channels * (scale != "none"),
        load_bytes=read + 8 * num_tokens + scales * stored,
        store_bytes=written,
        flops_issued=0,
    )

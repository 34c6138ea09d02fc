"""Cost of the block-scaled fp8 product, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div

BLOCK = 128  # values of in_features, and rows of b, that share a scale
SCALE_BYTES = 4

# tile of the output, warps and stages; "tma": tiles of a and b come through tensor descriptors
CONFIGS = {
    "128x128 tma": {"block_m": 128, "block_n": 128, "num_warps": 8, "num_stages": 4, "tma": True},
    "128x128 pointers": {"block_m": 128, "block_n": 128, "num_warps": 8, "num_stages": 3, "tma": False},
    "64x128 tma": {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 3, "tma": True},
    "64x32 tma": {"block_m": 64, "block_n": 32, "num_warps": 4, "num_stages": 6, "tma": True},
    "64x32 pointers": {"block_m": 64, "block_n": 32, "num_warps": 4, "num_stages": 6, "tma": False},
}
DEFAULT, WITHOUT_TMA = "128x128 tma", "128x128 pointers"
BY_DESCRIPTORS = CONFIGS[DEFAULT]  # the own choice where there are descriptors, for the formula

# edges around the block of 128 in all three sizes; in_features of 129 and 200 leave most of a block empty
TESTS = [
    {"num_tokens": num_tokens, "out_features": out_features, "in_features": in_features, "column_major": column_major}
    for num_tokens, out_features, in_features, column_major in [
        *((0, 128, 128, False), (1, 1, 1, False), (1, 128, 128, True), (3, 127, 129, False), (2, 129, 200, True)),
        *((5, 0, 128, False), (4, 8, 0, False), (127, 16, 127, True), (128, 130, 256, False), (129, 257, 384, True)),
        *((64, 256, 512, False), (1, 72, 1168, True)),
    ]
]
# the shapes of DeepSeek-V3 on one GPU: query-key-value down, output of a shared expert, its gate and up, query up
BENCH = {
    f"{num_tokens}x{out_features}x{in_features}": {
        "num_tokens": num_tokens,
        "out_features": out_features,
        "in_features": in_features,
        "column_major": True,
    }
    for out_features, in_features in ((2112, 7168), (7168, 2048), (4096, 7168), (24576, 1536))
    for num_tokens in (64, 128, 4096)
}
CPU_BENCH = {
    f"small-{num_tokens}x1536x576": {"num_tokens": num_tokens, "out_features": 1536, "in_features": 576}
    for num_tokens in (1, 16, 64)
}


def cost(num_tokens, out_features, in_features, column_major=False, dtype="bfloat16", config=None):
    """Cost of one call. dtype: of the output. column_major: how a_scales lie, which changes no count.

    Every tile of the output reads its rows of a and of b once over all of in_features.
    """
    config = config or CONFIGS[DEFAULT]
    tiles_m, tiles_n = ceil_div(num_tokens, config["block_m"]), ceil_div(out_features, config["block_n"])
    in_blocks, out_blocks = ceil_div(in_features, BLOCK), ceil_div(out_features, BLOCK)
    a, b = num_tokens * in_features, out_features * in_features
    a_scales, b_scales = num_tokens * in_blocks * SCALE_BYTES, out_blocks * in_blocks * SCALE_BYTES
    out = num_tokens * out_features * ITEM_BYTES[dtype]
    is_empty = num_tokens == 0 or out_features == 0
    return Cost(
        bytes_min=0 if is_empty else a + a_scales + b + b_scales + out,
        flops=2 * num_tokens * b,
        unit="float8",
        load_bytes=(a + a_scales) * tiles_n + b * tiles_m + tiles_m * tiles_n * in_blocks * SCALE_BYTES,
        store_bytes=out,
        flops_issued=2 * tiles_m * config["block_m"] * tiles_n * config["block_n"] * in_blocks * BLOCK,
    )

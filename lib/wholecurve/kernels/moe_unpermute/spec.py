"""Cost of the weighted sum, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

ROW_BYTES, WEIGHT_BYTES = 4, 4
# elements of the output of one program: short rows share one, long ones are cut
CONFIGS = {"1024 elements": {"elements": 1024}, "2048 elements": {"elements": 2048}}

# edges around 1024 elements: 8 rows of 128, one row from 513 on, two programs per row from 1025 on
TESTS = [
    {"num_tokens": num_tokens, "top_k": top_k, "hidden": hidden, "dropped": dropped}
    for num_tokens, top_k, hidden, dropped in [
        *((0, 2, 16, 0), (1, 1, 1, 0), (7, 2, 128, 0), (8, 2, 128, 3), (9, 2, 127, 18), (3, 8, 513, 5)),
        *((2, 6, 1024, 0), (2, 10, 1025, 7), (1, 1, 2048, 1), (40, 3, 2, 30)),
    ]
]
BENCH = {
    f"{name}-{num_tokens}": {"num_tokens": num_tokens, "top_k": 8, "hidden": hidden}
    for name, hidden in (("qwen3", 2048), ("deepseek-v3", 7168))
    for num_tokens in (64, 8192)
} | {"deepseek-v3-ep4-8192": {"num_tokens": 8192, "top_k": 8, "hidden": 7168, "dropped": 49152}}


def tile(hidden, elements=1024):
    """(rows, columns, programs side by side); never dependent on the number of tokens."""
    block = min(next_power_of_2(hidden), elements)
    return elements // block, block, ceil_div(hidden, block)


def cost(num_tokens, top_k, hidden, dropped=0, dtype="bfloat16", config=None):
    """Cost of one call. dropped: how many (token, slot) pairs have no row.

    flops: a product and a sum per element of a row that counts.
    """
    item, slots = ITEM_BYTES[dtype], num_tokens * top_k
    kept = slots - dropped
    *_, side_by_side = tile(hidden, **(config or {}))
    rows, out = kept * hidden * item, num_tokens * hidden * item
    return Cost(
        bytes_min=rows + out + slots * ROW_BYTES + kept * WEIGHT_BYTES,
        flops=2 * kept * hidden,
        load_bytes=rows + side_by_side * (slots * ROW_BYTES + kept * WEIGHT_BYTES),
        store_bytes=out,
        flops_issued=0,
    )

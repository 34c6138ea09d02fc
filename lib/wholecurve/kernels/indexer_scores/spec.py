"""Cost of the indexer's scores, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

INDEX_BYTES = 4  # of a length, a sequence and a page id, as the cases have them
CONFIGS = {
    "64 keys": {"block_keys": 64, "num_warps": 4},
    "256 keys": {"block_keys": 256},
    "4 warps": {"num_warps": 4},
    "2 stages": {"num_stages": 2},
    "span 4096": {"span": 4096},
}


def toy(rows, **options):
    """A test case: rows as (sequence, tokens that it sees), three heads of 16 and pages of 8 unless they say more."""
    return {"rows": rows, "num_heads": 3, "head_dim": 16, "block_size": 8} | options


def tail(sequence, context, count):
    """The last `count` tokens of a context as rows."""
    return [(sequence, context - count + 1 + row) for row in range(count)]


# lengths around a page (8), a block of keys (128) and a span (1024); heads around 16; every option
TESTS = [
    toy([]),
    toy([(0, 0)], max_context=5),
    toy([(0, 1)], num_heads=1, max_context=1),
    toy([(0, 7), (1, 8), (2, 9), (0, 3)], block_size=1),
    toy([(0, 127), (1, 128), (2, 129)], num_heads=17, max_context=130),
    toy(tail(0, 20, 5) + tail(1, 4, 4), head_dim=24),
    toy([(1, 1023), (0, 1025)], num_heads=16, max_context=1100),
    toy([(0, 260)], num_heads=64, head_dim=128, block_size=64),
    toy(tail(0, 15, 9), compress=4, max_context=4),
    toy([(0, 3), (0, 4), (1, 0), (1, 531)], compress=4),
    toy([(0, 40), (1, 140)], fp8="keys"),
    toy([(0, 40), (1, 140)], fp8="both", head_dim=32),
]
DEEPSEEK = {"num_heads": 64, "head_dim": 128, "block_size": 64}
BENCH = {
    "decode-64x131072": {"rows": [(sequence, 131072) for sequence in range(64)]} | DEEPSEEK,
    "fp8-decode-64x131072": {"rows": [(sequence, 131072) for sequence in range(64)], "fp8": "both"} | DEEPSEEK,
    "verify-64x32768": {"rows": [row for sequence in range(64) for row in tail(sequence, 32768, 4)]} | DEEPSEEK,
    "h32-verify-64x131072": {
        **{"rows": [row for sequence in range(64) for row in tail(sequence, 131072, 4)]},
        **(DEEPSEEK | {"num_heads": 32, "compress": 2, "fp8": "both"}),
    },
    "prefill-4096x32768": {"rows": tail(0, 32768, 4096)} | DEEPSEEK,
    "fp8-prefill-4096x32768": {"rows": tail(0, 32768, 4096), "fp8": "both"} | DEEPSEEK,
}
CPU_BENCH = {
    "decode-4x1024": {"rows": [(sequence, 1024) for sequence in range(4)]} | DEEPSEEK,
    "decode-1x8192": {"rows": [(0, 8192)]} | DEEPSEEK,
}


def tile(num_heads, head_dim, block_keys=128, span=1024, num_warps=8, num_stages=3):
    """Tile sizes of one program of the Triton form, by name; never dependent on the number of rows."""
    return {
        "SPAN": max(span, block_keys),
        "BLOCK_KEYS": block_keys,
        "BLOCK_HEADS": max(16, next_power_of_2(num_heads)),
        "BLOCK_DIM": max(16, next_power_of_2(head_dim)),
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def cost(
    rows,
    num_heads,
    head_dim,
    block_size,
    compress=1,
    max_context=None,
    fp8=None,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call.

    rows: (sequence, tokens that it sees) of each row. max_context: width of the output, None for the longest. fp8:
    None, "keys" for a cache of 8 bits with scales, or "both" for queries of 8 bits with scales too.
    bytes_min takes the keys of a sequence once for all of its rows. flops: the products, the weighted sum over the
    heads and the scale of a key. The Triton form reads the visible keys once per row, with a page id each, and the
    queries once per span of SPAN positions.
    """
    tiles = tile(num_heads, head_dim, **(config or {}))
    q_item = 1 if fp8 == "both" else ITEM_BYTES[dtype]
    key_bytes = head_dim * (1 if fp8 else ITEM_BYTES[dtype]) + 4 * bool(fp8)
    # a row's queries, weights and scales
    row_bytes = num_heads * (head_dim * q_item + 4 + 4 * (fp8 == "both"))
    seen = [length // compress for _, length in rows]
    longest = {}
    for (sequence, _), count in zip(rows, seen):
        longest[sequence] = max(longest.get(sequence, 0), count)
    width = max(seen, default=0) if max_context is None else max_context
    spans = sum(ceil_div(count, tiles["SPAN"]) for count in seen)
    key_tiles = sum(ceil_div(count, tiles["BLOCK_KEYS"]) for count in seen)
    results = 4 * len(rows) * width
    pages = sum(ceil_div(count, block_size) for count in longest.values())
    return Cost(
        bytes_min=sum(longest.values()) * key_bytes
        + pages * INDEX_BYTES
        + len(rows) * (row_bytes + 2 * INDEX_BYTES)
        + results,
        flops=sum(seen) * num_heads * (2 * head_dim + 2),
        unit=matrix_unit("float8_e4m3fn" if fp8 == "both" else dtype),
        load_bytes=sum(seen) * (key_bytes + INDEX_BYTES)
        + spans * (row_bytes + INDEX_BYTES)
        + len(rows) * ceil_div(width, tiles["SPAN"]) * INDEX_BYTES,
        store_bytes=results,
        flops_issued=2 * key_tiles * tiles["BLOCK_KEYS"] * tiles["BLOCK_HEADS"] * tiles["BLOCK_DIM"],
    )

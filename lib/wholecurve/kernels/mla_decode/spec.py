"""Cost of MLA decode, its test cases and its bench cases."""

import collections
import dataclasses

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

INDEX_BYTES = 4  # of a length, a page id and a listed position, as the cases have them
# by bytes of a cached value: 64 rows fill one step of the matrix units of sm_90 and later; with their accumulators no
# registers are left to convert a cache of 8 bits, and products in full fp32 take more of them yet
MOST_ROWS = {1: 32, 2: 64, 4: 16}
# why a row of the static table may spill, by launch
SPILLS = {
    "attend_split_kernel": "tiles are sized for sm_90: the accumulator, up to 64 x 512, takes half of its registers; "
    "tcgen05 passes it through them whole when it is rescaled"
}
CONFIGS = {
    "16 rows": {"block_rows": 16},
    "32 rows": {"block_rows": 32},
    "64 rows": {"block_rows": 64},
    "16 tokens": {"block_tokens": 16, "num_stages": 3},
    "64 tokens": {"block_tokens": 64},
    "split 2048": {"split": 2048},
}


def toy(contexts, num_heads, **options):
    """A test case with latents of 24 values and a rope part of 8, unless the options say otherwise."""
    sizes = {"value_dim": 24, "rope_dim": 8, "block_size": 16}
    return {"contexts": contexts, "num_heads": num_heads} | sizes | options


# contexts around a page, a tile (32) and the split of few rows (128); heads around the tiles of 16, 32, 64; each option
TESTS = [
    toy([1], 16),
    toy([0], 2),
    toy([], 2),
    toy([15, 16, 17, 0, 33], 3, value_dim=4, rope_dim=2, sinks=True, return_lse=True),
    toy([31, 32, 33, 65], 16, block_size=1),
    toy([63, 64, 65], 17, block_size=64, max_context=700),
    toy([127, 128, 129, 300], 4, block_size=5, return_lse=True),
    toy([40], 65, sinks=True),
    toy([33], 128),
    toy([70, 3], 16, value_dim=512, rope_dim=64),
    toy([70, 5], 16, value_dim=512, rope_dim=0, block_size=64, window=7, sinks=True, return_lse=True),
    toy([300, 40, 1], 2, window=140, num_queries=2, return_lse=True),
    toy([5, 2, 0, 70], 6, num_queries=4, sinks=True, return_lse=True),
    toy([67], 20, num_queries=4, window=3),
    toy([65, 0, 33], 16, fp8=True, return_lse=True),
    toy([40, 129], 5, fp8=True, num_queries=2),
    toy([200, 7, 0, 32], 16, num_listed=32, sinks=True, return_lse=True),
    toy([330, 64], 4, num_listed=150, max_context=500),
    toy([90, 2], 18, num_listed=33, num_queries=3, fp8=True, return_lse=True),
    toy([90, 300], 4, num_listed=31, num_queries=2, window=20),
]
DEEPSEEK = {"value_dim": 512, "rope_dim": 64, "block_size": 64}
BENCH = {
    "64x8192-h128": {"contexts": [8192] * 64, "num_heads": 128} | DEEPSEEK,
    "64x8192-h16": {"contexts": [8192] * 64, "num_heads": 16} | DEEPSEEK,
    "8x131072-h16": {"contexts": [131072] * 8, "num_heads": 16} | DEEPSEEK,
    "verify-64x8192-h16": {"contexts": [8192] * 64, "num_heads": 16, "num_queries": 4} | DEEPSEEK,
    "fp8-64x8192-h128": {"contexts": [8192] * 64, "num_heads": 128, "fp8": True} | DEEPSEEK,
    "fp8-64x8192-h16": {"contexts": [8192] * 64, "num_heads": 16, "fp8": True} | DEEPSEEK,
    "sparse-64x32768-h128": {"contexts": [32768] * 64, "num_heads": 128, "num_listed": 2048} | DEEPSEEK,
    "window-64x8192-h64": {
        **{"contexts": [8192] * 64, "num_heads": 64, "value_dim": 512, "rope_dim": 0, "block_size": 64},
        **{"window": 128, "sinks": True, "return_lse": True},
    },
}
CPU_BENCH = {
    "4x1024-h16": {"contexts": [1024] * 4, "num_heads": 16} | DEEPSEEK,
    "1x1024-h128": {"contexts": [1024], "num_heads": 128} | DEEPSEEK,
    "sparse-4x8192-h16": {"contexts": [8192] * 4, "num_heads": 16, "num_listed": 1024} | DEEPSEEK,
}


def tile(
    rows, value_dim, rope_dim, cache_item, block_rows=None, block_tokens=32, split=None, num_warps=8, num_stages=2
):
    """Tile sizes of one program of the Triton form, by name; never dependent on the number of sequences.

    rows: query heads that share their tokens. cache_item: bytes of a cached value. The results of a split weigh
    rows · value_dim · 4 bytes, so its length grows with the rows: written and read they stay near an eighth of what
    a split reads of a 16-bit cache, until the limit.
    """
    return {
        "BLOCK_ROWS": block_rows or min(MOST_ROWS[cache_item], max(16, next_power_of_2(rows))),
        "BLOCK_TOKENS": block_tokens,
        "SPLIT": split or min(1024, max(128, 32 * next_power_of_2(rows))),
        "BLOCK_VALUE": max(16, next_power_of_2(value_dim)),
        "BLOCK_ROPE": max(16, next_power_of_2(rope_dim)),
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


@dataclasses.dataclass
class Work:
    """What the cost of one sequence is made of. pairs: (query, token) pairs. tokens, pages: of the cache, each once.
    token_reads: with one read per row tile. split_rows: (query, head) rows of partial results. merged_rows: those
    that are read again. tiles: products of BLOCK_ROWS rows with BLOCK_TOKENS tokens.
    """

    pairs: int = 0
    tokens: int = 0
    pages: int = 0
    token_reads: int = 0
    split_rows: int = 0
    merged_rows: int = 0
    tiles: int = 0


def dense_work(context, num_heads, num_queries, window, block_size, tiles):
    """The Work of a sequence whose queries see all of their context, or its last `window` tokens."""
    split, block_tokens = tiles["SPLIT"], tiles["BLOCK_TOKENS"]
    limits = [max(0, context - num_queries + 1 + query) for query in range(num_queries)]
    lows = [max(0, limit - window) if window else 0 for limit in limits]
    work = Work(
        pairs=sum(limits) - sum(lows),
        tokens=limits[-1] - lows[0],
        pages=ceil_div(limits[-1], block_size) - lows[0] // block_size if context else 0,
        merged_rows=num_heads * sum(ceil_div(limit, split) - low // split for limit, low in zip(limits, lows)),
    )
    rows = num_queries * num_heads
    for first_row in range(0, rows, tiles["BLOCK_ROWS"]):
        last_row = min(rows, first_row + tiles["BLOCK_ROWS"]) - 1
        low, limit = lows[first_row // num_heads], limits[last_row // num_heads]
        work.token_reads += limit - low
        for start in range(low // split * split, limit, split):
            first = max(start, low // block_tokens * block_tokens)
            work.split_rows += last_row - first_row + 1
            work.tiles += ceil_div(min(limit, start + split) - first, block_tokens)
    return work


def listed_work(context, num_heads, num_queries, window, block_size, tiles, num_listed):
    """The Work of a sequence whose queries list their tokens: as many as there are to see and fit into the list."""
    limits = [max(0, context - num_queries + 1 + query) for query in range(num_queries)]
    listed = [min(num_listed, limit, window or limit) for limit in limits]
    num_splits, row_tiles = ceil_div(num_listed, tiles["SPLIT"]), ceil_div(num_heads, tiles["BLOCK_ROWS"])
    full, rest = divmod(num_listed, tiles["SPLIT"])
    tiles_of_list = full * tiles["SPLIT"] // tiles["BLOCK_TOKENS"] + ceil_div(rest, tiles["BLOCK_TOKENS"])
    return Work(
        pairs=sum(listed),
        tokens=max(listed),
        pages=min(max(listed), ceil_div(context, block_size)),
        token_reads=sum(listed) * row_tiles,
        split_rows=num_queries * num_heads * num_splits,
        merged_rows=num_queries * num_heads * num_splits,
        tiles=num_queries * row_tiles * tiles_of_list,
    )


def cost(
    contexts,
    num_heads,
    value_dim,
    rope_dim,
    block_size,
    num_queries=1,
    max_context=None,
    window=None,
    sinks=False,
    return_lse=False,
    fp8=False,
    num_listed=None,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call.

    max_context: tokens that a row of the block table can name (the grid of the Triton form is made for it), None for
    the longest context. num_listed: length of each query's list of positions, None for all of the context.
    bytes_min: every cached token that a query sees once; of several lists of one sequence, which name nearly the
    same tokens, the longest; a page id once per page, and once per token where tokens are listed.
    The Triton form reads the latents once per BLOCK_ROWS rows, a page id per token, and writes and reads the partial
    results of each split.
    """
    item, width = ITEM_BYTES[dtype], value_dim + rope_dim
    cache_item = 1 if fp8 else item
    shared = 1 if num_listed else num_queries  # queries that share their tokens
    tiles = tile(shared * num_heads, value_dim, rope_dim, cache_item, **(config or {}))
    total = collections.Counter()
    for context, times in collections.Counter(contexts).items():
        sequence = (context, num_heads, num_queries, window, block_size, tiles)
        work = listed_work(*sequence, num_listed) if num_listed else dense_work(*sequence)
        total.update({name: times * amount for name, amount in dataclasses.asdict(work).items()})
    longest = max(contexts, default=0) if max_context is None else max_context
    num_splits = ceil_div(num_listed or ceil_div(longest, block_size) * block_size, tiles["SPLIT"])
    groups = len(contexts) * num_queries // shared
    row_tiles = ceil_div(shared * num_heads, tiles["BLOCK_ROWS"])
    rows = len(contexts) * num_queries * num_heads
    token_bytes = width * cache_item + 4 * fp8
    list_bytes = len(contexts) * num_queries * (num_listed or 0) * INDEX_BYTES
    result_bytes = rows * (value_dim * item + 4 * return_lse)
    return Cost(
        bytes_min=total["tokens"] * token_bytes
        + (total["pages"] + len(contexts)) * INDEX_BYTES
        + (rows > 0) * num_heads * 4 * sinks
        + rows * width * item
        + list_bytes
        + result_bytes,
        flops=2 * total["pairs"] * num_heads * (width + value_dim),
        unit=matrix_unit(dtype),
        load_bytes=total["token_reads"] * (token_bytes + INDEX_BYTES)
        + total["split_rows"] * width * item
        + total["merged_rows"] * (value_dim + 2) * 4
        + row_tiles * list_bytes
        + groups * row_tiles * num_splits * INDEX_BYTES
        + (0 if num_listed else rows * INDEX_BYTES)
        + rows * 4 * sinks,
        store_bytes=total["split_rows"] * (value_dim + 2) * 4 + result_bytes,
        flops_issued=2
        * total["tiles"]
        * tiles["BLOCK_ROWS"]
        * tiles["BLOCK_TOKENS"]
        * (2 * tiles["BLOCK_VALUE"] + (tiles["BLOCK_ROPE"] if rope_dim else 0)),
    )

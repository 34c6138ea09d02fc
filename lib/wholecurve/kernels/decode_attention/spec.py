"""Cost of paged decode attention, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

SPLIT_TOKENS = 256
# a tile of tokens, and how many of them make a split; None where the head sizes decide (see `tile`)
CONFIGS = {
    "32 tokens": {"tokens": 32},
    "64 tokens": {"tokens": 64},
    "splits of 128": {"split": 128},
    "splits of 512": {"split": 512},
    "8 warps": {"num_warps": 8},
    "3 stages": {"num_stages": 3},
}


def case(contexts, num_heads, num_kv_heads, head_dim, block_size, **options):
    """A case as a dict; options: the other arguments of `cost`."""
    shape = dict(contexts=contexts, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return shape | {"block_size": block_size} | options


# contexts around a page, a tile (64, 32, 16 tokens), a split (256) and the splits merged at a time (16); groups 1, 2,
# 3, 7, 8; head sizes that pad; a table for one split and for more; then each option by itself and with others
FP8 = {"cache_dtype": "float8_e4m3fn"}
TESTS = [
    case([1], 1, 1, 64, 16),
    case([0], 2, 2, 64, 16),
    case([], 2, 1, 64, 16),
    case([15, 16, 17, 0, 33], 6, 2, 64, 16, index_dtype="int64"),
    case([127, 129], 7, 1, 64, 16, table_blocks=20),
    case([63, 64, 65], 8, 1, 80, 1, return_lse=True),
    case([255, 256, 257, 520], 2, 1, 96, 5),
    case([70, 3], 4, 2, 128, 128, has_sinks=True),
    case([33, 66], 1, 1, 256, 16),
    case([17, 40], 1, 1, 512, 64, window=24, has_sinks=True, return_lse=True),
    case([20], 2, 1, 576, 16, v_head_dim=512),
    case([5, 300, 0, 31], 4, 2, 64, 16, window=32, return_lse=True),
    case([1, 4400], 1, 1, 16, 128),
    case([290, 12], 2, 1, 64, 5, window=280, soft_cap=20.0, has_sinks=True),
    case([40, 2, 0, 3, 65], 6, 2, 32, 16, num_queries=4, return_lse=True, has_sinks=True),
    case([270, 30], 2, 1, 16, 16, num_queries=3, window=1, return_lse=True),
    case([33, 260], 7, 1, 24, 16, num_queries=5, window=20, soft_cap=5.0),
    case([258, 9], 2, 1, 16, 16, num_queries=4, return_lse=True),
    case([40, 9], 40, 1, 16, 8, num_queries=2, has_sinks=True, soft_cap=30.0, return_lse=True),
    case([65, 17], 2, 1, 192, 16, v_head_dim=128, scales="tensor", **FP8),
    case([300, 1], 4, 2, 40, 16, scales="head", has_sinks=True, return_lse=True, **FP8),
    case([20, 0], 4, 2, 64, 64, num_queries=1, window=64, scales="head", table_blocks=1, **FP8),
    case([17, 3], 2, 2, 1, 16, v_head_dim=33, table_blocks=17),
]


def bench(contexts, num_heads, num_kv_heads, head_dim, block_size=16, spread=0.5, **options):
    """A production case. Its scores spread little, or compositions that round them to 16 bits would fail the gate."""
    return case(contexts, num_heads, num_kv_heads, head_dim, block_size, spread=spread, **options)


LLAMA = dict(num_heads=32, num_kv_heads=8, head_dim=128)
BENCH = {
    **{f"{batch}x{context}": bench([context] * batch, **LLAMA) for context in (8192, 1024) for batch in (64, 16, 1)},
    **{
        f"smollm2-{batch}x{context}": bench([context] * batch, 9, 3, 64) for context in (160, 1024) for batch in (1, 16)
    },
    "1x131072": bench([131072], **LLAMA),
    "fp8-64x8192": bench([8192] * 64, **LLAMA, scales="head", spread=0.25, **FP8),
    "verify-64x8192": bench([8192] * 64, **LLAMA, num_queries=4),
    "gpt-oss-64x8192": bench([8192] * 64, 64, 8, 64, has_sinks=True),
    "gpt-oss-window-64x8192": bench([8192] * 64, 64, 8, 64, window=128, has_sinks=True, spread=0.25),
    "gemma-window-64x8192": bench([8192] * 64, 16, 8, 256, window=1024),
    "gemma-global-64x8192": bench([8192] * 64, 16, 2, 512),
    "qwen-64x8192": bench([8192] * 64, 24, 2, 256, 64),
    "latent-window-64x8192": bench([8192] * 64, 64, 1, 512, 64, window=128, has_sinks=True),
    "head-80-64x1024": bench([1024] * 64, 32, 32, 80),
    "head-192-64x1024": bench([1024] * 64, 16, 16, 192, v_head_dim=128),
    "head-576-16x8192": bench([8192] * 16, 16, 1, 576, 64, v_head_dim=512),
}


def tile(rows, head_dim, v_head_dim, tokens=None, split=SPLIT_TOKENS, num_warps=None, num_stages=5):
    """How the Triton form cuts its work, by the names of its options; rows: query tokens · query heads of a key-value
    head. Never from the batch.

    A tile has about 32 KiB of keys and values in 16 bits, whatever the head size: its registers and two buffers of it
    fit two or three times on a multiprocessor. (The loads depend on the page table's, so triton gives them half of
    num_stages − 1 as their own.)
    """
    widest = max(head_dim, v_head_dim)
    block_rows = min(64 if widest <= 256 else 32, max(16, next_power_of_2(rows)))  # a product has at least 16
    (block_k, rest_k), (block_v, rest_v) = parts(head_dim, 16), parts(v_head_dim, 32)
    return {
        "SPLIT": split,
        "ROW_TILES": ceil_div(rows, block_rows),
        "BLOCK_ROWS": block_rows,
        "BLOCK_TOKENS": tokens or (64 if widest <= 128 else 32 if widest <= 256 else 16),
        "BLOCK_K": block_k,
        "REST_K": rest_k,
        "BLOCK_V": block_v,
        "REST_V": rest_v,
        "num_warps": num_warps or (8 if widest > 256 or (block_rows == 64 and widest > 64) else 4),
        "num_stages": num_stages,
    }


def parts(size, least):
    """(channels of the main tile, of a second one for the rest), powers of two of at least 16 and `least`.

    192 runs as 128 + 64 rather than as 256. Where one tile is as small, the second is unused. (A product with fewer
    columns than rows would make triton give all warps the same columns of every product, so `least` is 32 for V.)
    """
    main = max(16, next_power_of_2(size + 1) // 2)
    rest = max(least, next_power_of_2(size - main))
    return (max(16, next_power_of_2(size)), least) if size <= main or rest >= main else (main, rest)


def covered(size, least):
    """Channels of the tiles that hold `size` channels."""
    main, rest = parts(size, least)
    return main + rest * (main < size)


def most_splits(reach, queries, window, split):
    """Splits of the longest sequence: of all keys that the table can name, or of those that a window sees."""
    return max(1, ceil_div(min(reach, window + queries - 1) if window else reach, split))


def cost(
    contexts,
    num_heads,
    num_kv_heads,
    head_dim,
    block_size,
    dtype="bfloat16",
    num_queries=None,
    v_head_dim=None,
    window=None,
    soft_cap=None,
    has_sinks=False,
    return_lse=False,
    cache_dtype=None,
    scales=None,
    table_blocks=None,
    index_dtype="int32",
    spread=1.0,
    config=None,
):
    """Cost of one call.

    contexts: cached tokens per sequence, the queries' own among them. num_queries: tokens per sequence, None for one in
    q [B, H, D]. cache_dtype: None for `dtype`. scales: of an fp8 cache, None, "tensor" (two floats) or "head" (two
    [G]). table_blocks: width of the block table, None for just enough; the grid of the Triton form is made for it.
    spread: standard deviation of the scores, which costs nothing.
    sinks are fp32. soft_cap costs nothing here. load_bytes of the Triton form: the query once per split, one table
    entry per token and key-value head, a length per program of both kernels, and the partial results.
    """
    v_dim, item, index = v_head_dim or head_dim, ITEM_BYTES[dtype], ITEM_BYTES[index_dtype]
    asked, sequences, scaled = num_queries or 1, len(contexts), 4 * (scales == "head")
    reach = block_size * (table_width(contexts, block_size) if table_blocks is None else table_blocks)
    window = 0 if window is None or window >= reach else window
    spans = [(first_key(context, asked, window), context) for context in contexts]
    tokens = sum(end - start for start, end in spans)
    pages = sum(ceil_div(end, block_size) - start // block_size for start, end in spans if end > start)
    rows = sequences * asked * num_heads
    kv_bytes = num_kv_heads * (head_dim + v_dim) * ITEM_BYTES[cache_dtype or dtype]
    out_bytes = rows * (v_dim * item + 4 * return_lse)
    extra = (4 * num_heads * has_sinks + 2 * num_kv_heads * scaled) * (sequences > 0)
    seen = sum(seen_pairs(context, asked, window) for context in contexts)

    group_rows = asked * num_heads // num_kv_heads
    tiles = tile(group_rows, head_dim, v_dim, **(config or {}))
    num_splits = most_splits(reach, asked, window, tiles["SPLIT"])
    direct = num_splits == 1
    programs = num_kv_heads * tiles["ROW_TILES"]  # per sequence and split
    splits = sum(ceil_div(end - start, tiles["SPLIT"]) for start, end in spans)
    working = sequences if direct else splits  # the others leave at once
    lengths = sequences * (programs * num_splits + (0 if direct else asked * num_heads))
    partials = 0 if direct else 4 * splits * asked * num_heads * (v_dim + 2)
    closings = sequences * programs if direct else rows  # where a scale of V is read; a sink is read once per row
    return Cost(
        bytes_min=tokens * kv_bytes + rows * head_dim * item + out_bytes + index * (pages + sequences) + extra,
        flops=2 * seen * num_heads * (head_dim + v_dim),
        unit=matrix_unit(dtype),
        load_bytes=tiles["ROW_TILES"] * tokens * (kv_bytes + index * num_kv_heads)
        + working * (asked * num_heads * head_dim * item + programs * scaled)
        + index * lengths
        + partials
        + rows * 4 * has_sinks
        + closings * scaled,
        store_bytes=partials + out_bytes,
        flops_issued=2
        * sum(issued_tiles(end - start, tiles) for start, end in spans)
        * programs
        * tiles["BLOCK_ROWS"]
        * tiles["BLOCK_TOKENS"]
        * (covered(head_dim, 16) + covered(v_dim, 32)),
    )


def first_key(context, queries, window):
    """The first key that any of the last `queries` tokens of a context sees; window 0: no window."""
    return max(0, context - queries - window + 1) if window else 0


def seen_pairs(context, queries, window):
    """(query, key) pairs of the last `queries` positions of a context; those before 0 see nothing."""
    ends = range(max(0, context - queries) + 1, context + 1)
    return sum(min(end, window) if window else end for end in ends)


def issued_tiles(tokens, tiles):
    """Tiles of tokens over all splits of a sequence."""
    full, rest = divmod(tokens, tiles["SPLIT"])
    return full * ceil_div(tiles["SPLIT"], tiles["BLOCK_TOKENS"]) + ceil_div(rest, tiles["BLOCK_TOKENS"])


def table_width(contexts, block_size):
    """Entries of a block table that just holds the longest context."""
    return ceil_div(max(contexts, default=0), block_size)

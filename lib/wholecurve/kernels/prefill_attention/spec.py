"""Cost of chunked prefill attention, its test cases and its bench cases."""

import dataclasses

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

MAX_HEAD_DIM = 512
# keys, rows and stages are those of `tile` where a configuration does not name them
CONFIGS = {
    "descriptors": {"tma": True},
    "pointers": {"tma": False},
    "64 keys": {"block_n": 64},
    "32 keys": {"block_n": 32},
    "64 rows": {"block_m": 64},
    "2 stages": {"num_stages": 2},
}
BY_DESCRIPTORS = {"tma": True}  # the own choice where there are descriptors, for the formula


def case(chunks, num_heads, num_kv_heads, head_dim, block_size, **options):
    """A case as a dict; options: the other arguments of `cost`."""
    shape = dict(chunks=chunks, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return shape | {"block_size": block_size} | options


# (new tokens, context) per sequence: empty ones first, between and last, no prefix, one new token, more new tokens
# than context; contexts around a page and around tiles of 32, 64 and 128 keys; groups 1, 2, 3, 7; head sizes that pad
TESTS = [
    case([], 2, 1, 64, 16),
    case([(0, 0), (0, 5)], 2, 1, 64, 16, return_lse=True),
    case([(0, 4), (3, 3), (0, 9), (2, 5), (0, 0)], 4, 2, 64, 16, max_q=3),
    case([(1, 1), (1, 40), (15, 15), (16, 32), (17, 33)], 9, 3, 64, 16, index_dtype="int64"),
    case([(127, 128), (128, 128), (129, 300)], 1, 1, 64, 64),
    case([(19, 127), (18, 129)], 7, 1, 96, 5, return_lse=True),
    case([(5, 3), (4, 1), (3, 0)], 2, 2, 80, 1, has_sinks=True, return_lse=True),
    case([(40, 200), (3, 259)], 4, 2, 64, 128, window=70, max_q=41),
    case([(9, 70), (70, 70)], 2, 1, 128, 64, window=1, soft_cap=5.0, has_sinks=True, return_lse=True),
    case([(70, 200), (4, 3)], 2, 1, 24, 16, window=65, soft_cap=20.0),
    case([(64, 400)], 2, 1, 16, 16, window=200),  # tiles between the edge of the window and the diagonal
    case([(33, 140)], 2, 2, 256, 128, v_head_dim=80),
    case([(2, 70), (20, 21)], 2, 1, 512, 64, window=20),
    case([(12, 150), (70, 70)], 3, 1, 64, 128, v_head_dim=128, cache_dtype="float8_e4m3fn", scales="tensor"),
    case([(9, 40)], 4, 2, 128, 16, cache_dtype="float8_e4m3fn", scales="head", has_sinks=True, return_lse=True),
]
LLAMA = dict(num_heads=32, num_kv_heads=8, head_dim=128, block_size=128)
MIXED = [(1, 8192), (17, 4113), (128, 640), (511, 511), (1024, 9216), (2048, 2048)]
BENCH = {
    **{f"{new}x{context}": case([(new, context)], **LLAMA) for new, context in [(512, 512), (2048, 2048)]},
    **{f"{new}x{context}": case([(new, context)], **LLAMA) for new, context in [(2048, 16384), (8192, 8192)]},
    "mixed": case(MIXED, **LLAMA, max_q=2048),
    "verify-64x4x8192": case([(4, 8192)] * 64, **LLAMA, max_q=4),
    "pages-of-16-2048x16384": case([(2048, 16384)], **LLAMA | {"block_size": 16}),
    "fp8-2048x16384": case([(2048, 16384)], **LLAMA, cache_dtype="float8_e4m3fn", scales="head"),
    "head-64-8192x8192": case([(8192, 8192)], 32, 8, 64, 128),
    "gemma-window-8192x8192": case([(8192, 8192)], 16, 8, 256, 128, window=1024),
    "gemma-global-8192x8192": case([(8192, 8192)], 16, 2, 512, 128),
    "gpt-oss-window-8192x8192": case([(8192, 8192)], 64, 8, 64, 128, window=128, has_sinks=True),
    "gemma2-2048x8192": case([(2048, 8192)], 16, 8, 256, 16, soft_cap=50.0),
    "head-192-8192x8192": case([(8192, 8192)], 16, 16, 192, 64, v_head_dim=128),
}
# the production cases are too large for a CPU; these have the heads of a model of 135 million parameters
SMALL = dict(num_heads=9, num_kv_heads=3, head_dim=64, block_size=16)
CPU_BENCH = {
    f"small-{new}x{context}": case([(new, context)], **SMALL) for new, context in [(128, 128), (512, 512), (64, 576)]
}


@dataclasses.dataclass(frozen=True)
class Tile:
    """One program of the Triton form: block_m rows of queries, block_n keys at a time, block_k and block_v channels
    of a key and of a value. tma: keys and values come through tensor descriptors.
    """

    block_m: int
    block_n: int
    block_k: int
    block_v: int
    num_warps: int
    num_stages: int
    tma: bool


def tile(head_dim, v_head_dim, block_size, dtype="bfloat16", cache_dtype=None, tma=False, **changes):
    """The Tile for these head sizes and pages; never dependent on the batch.

    tma: whether descriptors may be used: they are, where a page is a multiple of the keys of a tile, so that a tile
    lies inside one page. changes: fields of Tile that are set by hand; block_n is kept to what a block can hold.
    """
    block_k, block_v = (max(16, next_power_of_2(size)) for size in (head_dim, v_head_dim))
    widest = max(128, block_k, block_v)
    if dtype == "float32":
        # its products run on the vector units, where a thread holds whole rows of both operands in registers
        rows, by_pointer, most, least_warps, tma = 32 if widest == 128 else 16, 16, 16, 4 if widest == 128 else 8, False
    else:
        # a tile of keys takes at most 32 KiB of shared memory; through pointers it takes registers as well, and so it
        # does from an fp8 cache, where it is converted
        rows, by_pointer, most, least_warps = 64 if widest > 256 else 128, 64 * 128 // widest, 128 * 128 // widest, 4
    by_descriptor = (max(16, most // 2),) if cache_dtype else (most, most // 2)
    rows = changes.get("block_m", rows)
    if "block_n" in changes:
        by_pointer = min(changes["block_n"], most)
        by_descriptor = (by_pointer,)
    fitting = [keys for keys in by_descriptor if block_size % keys == 0] if tma else []
    chosen = {
        "block_m": rows,
        "block_k": block_k,
        "block_v": block_v,
        # 16 rows of a product for each warp, and at most 128 registers of a thread for the accumulator
        "num_warps": max(least_warps, rows // 16, rows * widest // 4096),
        "num_stages": 3 if widest == 128 else 2,
    }
    return Tile(**chosen | changes | {"block_n": fitting[0] if fitting else by_pointer, "tma": bool(fitting)})


def cost(
    chunks,
    num_heads,
    num_kv_heads,
    head_dim,
    block_size,
    dtype="bfloat16",
    max_q=None,
    v_head_dim=None,
    window=None,
    soft_cap=None,
    has_sinks=False,
    return_lse=False,
    cache_dtype=None,
    scales=None,
    index_dtype="int32",
    config=None,
):
    """Cost of one call.

    chunks: (new tokens, context) per sequence. max_q: the bound on new tokens that the grid is made for, None for
    their sum. cache_dtype: None for that of q. scales: None, "tensor" for one number per fp8 cache or "head" for one
    per key-value head. index_dtype: of page ids, lengths and offsets. config: None for the tiles that the Triton form
    takes where there are no tensor descriptors. load_bytes: the query once, table entries, keys and values once per
    tile of queries. The transcendental functions, the sum and the rescaling of a softmax are not in flops.
    """
    v_head_dim = v_head_dim or head_dim
    shape = tile(head_dim, v_head_dim, block_size, dtype, cache_dtype, **(config or {}))
    item, cache_item, index_item = (ITEM_BYTES[name] for name in (dtype, cache_dtype or dtype, index_dtype))
    group, new_tokens = num_heads // num_kv_heads, sum(new for new, _ in chunks)
    scale_bytes = 4 * 2 * (scales == "head")  # of one key-value head
    row_bytes = head_dim * item + 4 * has_sinks
    out_bytes = new_tokens * num_heads * (v_head_dim * item + 4 * return_lse)
    load_bytes = steps = 0  # of one key-value head
    for new, context in chunks:
        programs = ceil_div((new_tokens if max_q is None else max_q) * group, shape.block_m)
        load_bytes += programs * 2 * index_item + new * group * row_bytes
        for tile_number in range(ceil_div(new * group, shape.block_m)):
            walk = Walk(*query_span(new, context, group, tile_number, shape.block_m), window, block_size, shape)
            steps += walk.steps
            load_bytes += (3 + walk.table_entries) * index_item + scale_bytes  # two offsets are read again
            load_bytes += cache_item * (walk.loaded_keys * head_dim + walk.keys * v_head_dim)
    seen = [seen_keys(new, context, window, block_size) for new, context in chunks]
    return Cost(
        bytes_min=sum(keys for keys, _ in seen) * num_kv_heads * (head_dim + v_head_dim) * cache_item
        + new_tokens * num_heads * head_dim * item
        + out_bytes
        + (new_tokens > 0) * (index_item * (sum(pages for _, pages in seen) + 2 * len(chunks) + 1))
        + (new_tokens > 0) * (num_kv_heads * scale_bytes + num_heads * 4 * has_sinks),
        flops=2 * sum(seen_pairs(*chunk, window) for chunk in chunks) * num_heads * (head_dim + v_head_dim),
        unit=matrix_unit(dtype),
        load_bytes=num_kv_heads * load_bytes,
        store_bytes=out_bytes,
        flops_issued=2 * num_kv_heads * steps * shape.block_m * shape.block_n * (shape.block_k + shape.block_v),
    )


def query_span(new, context, group, tile_number, block_m):
    """(first, last) position of the query tokens in one tile of a chunk; negative for tokens that see no key."""
    first_row = tile_number * block_m
    prefix = context - new
    return prefix + first_row // group, prefix + min((first_row + block_m - 1) // group, new - 1)


@dataclasses.dataclass(frozen=True)
class Walk:
    """The way of one program over the keys that the queries at positions first to last see."""

    first: int
    last: int
    window: int | None
    block_size: int
    shape: Tile

    @property
    def begin(self):
        """The first key that is seen."""
        return 0 if self.window is None else max(0, self.first - self.window + 1)

    @property
    def keys(self):
        """Keys that are seen."""
        return max(0, self.last + 1) - min(self.begin, max(0, self.last + 1))

    @property
    def steps(self):
        """Tiles of keys; the first starts at a multiple of its size."""
        if not self.keys:
            return 0
        return ceil_div(self.last + 1, self.shape.block_n) - self.begin // self.shape.block_n

    @property
    def loaded_keys(self):
        """A descriptor loads whole tiles of keys."""
        return self.steps * self.shape.block_n if self.shape.tma else self.keys

    @property
    def table_entries(self):
        """One per tile that lies inside one page, else one per key."""
        return self.steps if self.block_size % self.shape.block_n == 0 else self.keys


def seen_pairs(new, context, window=None):
    """(query, key) pairs under the bottom-right causal mask; queries beyond the context see nothing."""
    return pairs_of_prompt(context, window) - pairs_of_prompt(context - min(new, context), window)


def pairs_of_prompt(length, window):
    """(query, key) pairs of a whole prompt of this length."""
    outside = 0 if window is None else max(0, length - window)
    return length * (length + 1) // 2 - outside * (outside + 1) // 2


def seen_keys(new, context, window, block_size):
    """(keys that any query of a chunk sees, pages that they lie on)."""
    seeing = min(new, context)
    if not seeing:
        return 0, 0
    lowest = 0 if window is None else max(0, context - seeing - window + 1)
    return context - lowest, ceil_div(context, block_size) - lowest // block_size

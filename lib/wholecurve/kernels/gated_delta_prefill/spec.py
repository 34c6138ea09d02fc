"""Cost of the gated delta rule over whole sequences, its test cases and its bench cases."""

import types

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

CHUNK = 64
INDEX_BYTES = 4
STATE_BYTES = 4
# columns of the state in one program of the state pass (few: more programs for one long sequence), and of an output
CONFIGS = {
    "32 and 128 values": {"state_values": 32, "output_values": 128, "output_warps": 8},
    "16 and 64 values": {"state_values": 16, "output_values": 64, "output_warps": 4},
    "64 and 128 values": {"state_values": 64, "state_warps": 8, "output_values": 128, "output_warps": 8},
}

# lengths around a chunk, cut and empty sequences; fresh ones over a slot full of NaN, idle ones without a slot;
# groups 1, 2, 3; key and value sizes that differ and pad
TESTS = [
    {
        "lengths": lengths,
        "num_heads": num_heads,
        "num_value_heads": num_value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        **options,
    }
    for lengths, num_heads, num_value_heads, key_dim, value_dim, options in [
        ([], 1, 2, 16, 16, {}),
        ([0, 0], 1, 1, 16, 16, {"fresh": 1}),
        ([1], 1, 1, 1, 1, {}),
        ([63, 0, 65], 1, 1, 32, 16, {"fresh": 2}),
        ([0, 64, 1, 0], 2, 4, 16, 33, {"idle": 2}),
        ([127, 2], 1, 1, 24, 48, {"fresh": 1, "l2norm": False}),
        ([129], 1, 1, 70, 80, {}),
        ([5, 66], 1, 3, 16, 16, {"fresh": 1, "idle": 1}),
    ]
]
QWEN3_NEXT = {"num_heads": 16, "num_value_heads": 32, "key_dim": 128, "value_dim": 128}
BENCH = {
    "8K": {"lengths": [8192]} | QWEN3_NEXT,
    "64K": {"lengths": [65536]} | QWEN3_NEXT,
    "mixed-16K": {"lengths": [8192, 4096, 1500, 1024, 777, 512, 200, 83], "fresh": 6} | QWEN3_NEXT,
}
SMALL = {"num_heads": 4, "num_value_heads": 8, "key_dim": 64, "value_dim": 64}
CPU_BENCH = {
    "small-256": {"lengths": [256]} | SMALL,
    "small-2048": {"lengths": [2048]} | SMALL,
    "small-mixed-256": {"lengths": [129, 65, 1, 61], "fresh": 3} | SMALL,
}


def chunk_places(num_tokens, num_sequences):
    """Places for the chunks of any sequences of these numbers: the k-th chunk of sequence b, which starts at token s,
    is at s // CHUNK + b + k.
    """
    return num_tokens // CHUNK + num_sequences if num_tokens else 0


def tile(key_dim, value_dim, state_values=32, state_warps=4, output_values=128, output_warps=8):
    """Sizes and warps of the three kernels; never dependent on the batch. Products are at least 16 wide.

    Loads of `prepare` are not pipelined: its loops are short, and the registers go to the inverse.
    """
    keys, values = (max(16, next_power_of_2(size)) for size in (key_dim, value_dim))
    return types.SimpleNamespace(
        prepare={"BLOCK_K": min(64, keys), "BLOCK_V": min(64, values), "num_warps": 4, "num_stages": 1},
        state={"BLOCK_K": keys, "BLOCK_V": min(state_values, values), "num_warps": state_warps, "num_stages": 2},
        output={"BLOCK_K": keys, "BLOCK_V": min(output_values, values), "num_warps": output_warps},
    )


def cost(
    lengths,
    num_heads,
    num_value_heads,
    key_dim,
    value_dim,
    fresh=0,
    idle=0,
    l2norm=True,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call over sequences of these lengths.

    fresh: how many, from the first, start from zeros. idle: how many others, from the last, have no slot. flops: of
    the recurrence, as in `gated_delta_decode`; the chunks' products need more, which only flops_issued counts.
    """
    item, tokens, sequences = ITEM_BYTES[dtype], sum(lengths), len(lengths)
    tiles = tile(key_dim, value_dim, **(config or {}))
    state_blocks, output_blocks = (ceil_div(value_dim, part["BLOCK_V"]) for part in (tiles.state, tiles.output))
    chunks, places = sum(ceil_div(length, CHUNK) for length in lengths), chunk_places(tokens, sequences)
    heads, rows = num_value_heads, tokens * num_value_heads
    busy = sum(length > 0 for length in lengths)
    writing = sum(length > 0 for length in lengths[: sequences - idle])
    reading = sum(length > 0 for length in lengths[fresh : sequences - idle])
    state = heads * key_dim * value_dim
    marks = INDEX_BYTES * busy + (fresh > 0) * busy
    searches = places * heads * (sequences + 2) * INDEX_BYTES
    chunk_states = chunks * state * item
    wide, narrow = rows * key_dim * item, rows * value_dim * item
    prepare = searches + 2 * wide + narrow + rows * (4 + item)
    bounds = 2 * INDEX_BYTES * sequences * heads * state_blocks * (tokens > 0)
    passing = bounds + marks * heads * state_blocks + reading * state * STATE_BYTES + narrow
    passing += state_blocks * (2 * wide + 4 * rows + 4 * chunks * heads)
    output = output_blocks * (searches + 2 * wide + 8 * rows) + chunk_states + narrow
    return Cost(
        bytes_min=tokens * 2 * num_heads * key_dim * item
        + 2 * narrow
        + rows * (4 + item)
        + (reading + writing) * state * STATE_BYTES
        + marks
        + INDEX_BYTES * (sequences + 1),
        flops=7 * rows * key_dim * value_dim,
        unit=matrix_unit(dtype),
        load_bytes=prepare + passing + output,
        store_bytes=wide + 3 * narrow + 8 * rows + chunk_states + writing * state * STATE_BYTES,
        flops_issued=chunks * heads * chunk_flops(tiles, key_dim, value_dim),
    )


def chunk_flops(tiles, key_dim, value_dim):
    """Products of one chunk and value head as the tiles execute them."""
    block_k, block_v = tiles.prepare["BLOCK_K"], tiles.prepare["BLOCK_V"]
    keys, values = ceil_div(key_dim, block_k) * block_k, ceil_div(value_dim, block_v) * block_v
    prepare = CHUNK * CHUNK * (2 * keys + values) + 2 * (CHUNK // 2) ** 3
    block_k, block_v = tiles.state["BLOCK_K"], tiles.state["BLOCK_V"]
    passing = ceil_div(value_dim, block_v) * 2 * CHUNK * block_k * block_v
    block_v = tiles.output["BLOCK_V"]
    output = ceil_div(value_dim, block_v) * CHUNK * (CHUNK * block_k + (block_k + CHUNK) * block_v)
    return 2 * (prepare + passing + output)

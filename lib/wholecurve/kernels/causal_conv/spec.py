"""Cost of the causal convolution, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

MAX_HISTORY = 64
INDEX_BYTES = 4
# tokens of one program of long sequences and elements of its tile: long tiles read fewer inputs twice, small ones need
# fewer registers
CONFIGS = {
    "16 tokens, 1024": {"block_t": 16, "elements": 1024},
    "16 tokens, 2048": {"block_t": 16, "elements": 2048},
    "32 tokens, 2048": {"block_t": 32, "elements": 2048},
}

# lengths around a tile of 16 and shorter than the history; empty, fresh and idle sequences; widths 2, 3, 4; dilations;
# equal lengths as in a decode step, with and without states kept for drafts
TESTS = [
    {"lengths": lengths, "channels": channels, "width": width, **options}
    for lengths, channels, width, options in [
        ([], 8, 4, {}),
        ([0, 0], 8, 4, {"uniform": True}),
        ([1], 1, 2, {"has_bias": True}),
        ([15, 0, 17], 40, 4, {"fresh": 2, "has_bias": True}),
        ([16, 1, 2, 3], 130, 4, {"idle": 1, "fresh": 2}),
        ([5, 33], 24, 3, {"activation": None}),
        ([10, 7, 0, 40], 16, 4, {"dilation": 3, "fresh": 1, "has_bias": True}),
        ([40, 3], 8, 4, {"dilation": 20}),
        ([1, 1, 1, 1, 1], 300, 4, {"uniform": True, "fresh": 2, "idle": 1}),
        ([4, 4, 4], 70, 4, {"uniform": True, "kept": 4, "idle": 1}),
        ([2, 2], 33, 4, {"uniform": True, "kept": 2, "dilation": 3, "fresh": 1}),
        ([1, 19, 0], 20, 3, {"kept": 2}),
        ([18, 18], 16, 4, {"uniform": True, "kept": 0}),
    ]
]
QWEN3_NEXT = {"channels": 2 * 16 * 128 + 32 * 128, "width": 4}
BENCH = {
    "8K": {"lengths": [8192]} | QWEN3_NEXT,
    "mixed-16K": {"lengths": [8192, 4096, 1500, 1024, 777, 512, 200, 83], "fresh": 6} | QWEN3_NEXT,
    "decode-64": {"lengths": [1] * 64, "uniform": True} | QWEN3_NEXT,
    "decode-256": {"lengths": [1] * 256, "uniform": True} | QWEN3_NEXT,
    "decode-64x4-drafts": {"lengths": [4] * 64, "uniform": True, "kept": 4} | QWEN3_NEXT,
    "engram-8K": {"lengths": [8192], "channels": 5120, "width": 4, "dilation": 3},
}


def tile(channels, history, length=None, block_t=16, elements=1024):
    """(tokens, channels, warps) of one program; length: of every sequence where they are equal.

    Never dependent on the number of sequences, and no shorter than the history unless one tile holds a sequence.
    """
    block_t = max(block_t, next_power_of_2(history))
    if length is not None:
        block_t = min(block_t, next_power_of_2(length))
    return block_t, min(max(32, min(256, elements // block_t)), next_power_of_2(channels)), 4


def places(num_tokens, num_sequences, block_t, uniform):
    """Places for the tiles of any sequences of these numbers."""
    if not num_tokens:
        return 0
    if uniform:
        return num_sequences * ceil_div(num_tokens // num_sequences, block_t)
    return num_tokens // block_t + num_sequences


def cost(
    lengths,
    channels,
    width,
    dilation=1,
    has_bias=False,
    activation="silu",
    uniform=False,
    fresh=0,
    idle=0,
    kept=None,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call over sequences of these lengths.

    uniform: equal lengths, given without cu_seqlens. fresh: how many sequences, from the first, start from zeros.
    idle: how many others, from the last, have no slot. kept: None for the state after the last token, else for how
    many leading tokens of a sequence that is not idle the state is written. flops per tap: a product and a sum.
    """
    item, tokens, sequences = ITEM_BYTES[dtype], sum(lengths), len(lengths)
    history, lags = (width - 1) * dilation, [tap * dilation for tap in range(width)]
    block_t, block_c, _ = tile(channels, history, lengths[0] if uniform and lengths else None, **(config or {}))
    blocks, tiles = ceil_div(channels, block_c), sum(ceil_div(length, block_t) for length in lengths)
    searches = 0 if uniform else places(tokens, sequences, block_t, uniform) * (sequences + 2) * INDEX_BYTES
    parameters = (width + has_bias) * channels * item
    inputs = carried = written = marks = distinct = 0  # inputs and carried: rows of `channels` elements
    for sequence, length in enumerate(lengths):
        present = fresh <= sequence < sequences - idle
        inputs += sum(max(0, length - lag) for lag in lags)
        carried += present * sum(min(length, lag) for lag in lags)
        if not length:
            continue
        ends = [length] if kept is None else range(1, min(kept, length) + 1)
        ends = ends if sequence < sequences - idle else ()
        inputs += sum(min(end, history) for end in ends)
        carried += present * sum(max(0, history - end) for end in ends)
        written += history * len(ends)
        marks += 0 if kept is None else min(max(lengths), length) * INDEX_BYTES
        distinct += present * history
    flags = INDEX_BYTES + (fresh > 0)
    busy = sum(length > 0 for length in lengths)
    indexes = busy * flags + marks + (0 if uniform else INDEX_BYTES * (sequences + 1))
    return Cost(
        bytes_min=(2 * tokens + distinct + written) * channels * item + parameters * (tokens > 0) + indexes,
        flops=2 * width * tokens * channels,
        load_bytes=(inputs + carried) * channels * item
        + blocks * (searches + tiles * flags + marks)
        + tiles * parameters,
        store_bytes=(tokens + written) * channels * item,
        flops_issued=0,
    )

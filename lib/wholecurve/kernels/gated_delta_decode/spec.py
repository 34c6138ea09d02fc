"""Cost of the gated delta rule for few tokens, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

MAX_KEY_DIM = 256
INDEX_BYTES = 4
STATE_BYTES = 4
# columns of the state in one program: few make more programs for a small batch, many read q and k less often
CONFIGS = {
    "16 values": {"block_v": 16, "num_warps": 2},
    "32 values": {"block_v": 32, "num_warps": 4},
    "64 values": {"block_v": 64, "num_warps": 8},
}

# fresh sequences over a slot full of NaN, idle ones without a slot, drafts with some states kept; groups 1, 2, 3;
# key and value sizes that differ, pad, and pass a block of values
TESTS = [
    {
        "num_sequences": num_sequences,
        "num_tokens": num_tokens,
        "num_heads": num_heads,
        "num_value_heads": num_value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        **options,
    }
    for num_sequences, num_tokens, num_heads, num_value_heads, key_dim, value_dim, options in [
        (0, 1, 1, 2, 16, 16, {}),
        (1, 1, 1, 1, 1, 1, {}),
        (3, 1, 2, 4, 16, 32, {"fresh": 1, "idle": 1}),
        (2, 1, 1, 3, 24, 33, {"l2norm": False}),
        (1, 1, 2, 2, 128, 128, {}),
        (1, 2, 1, 1, 129, 31, {"fresh": 1}),
        (3, 4, 1, 2, 32, 65, {"fresh": 1, "kept": 4, "idle": 1}),
        (2, 3, 2, 4, 64, 48, {"kept": 1}),
        (2, 2, 1, 2, 48, 64, {"kept": 0}),
    ]
]
QWEN3_NEXT = {"num_heads": 16, "num_value_heads": 32, "key_dim": 128, "value_dim": 128}
BENCH = {
    f"{num_sequences}": {"num_sequences": num_sequences, "num_tokens": 1} | QWEN3_NEXT for num_sequences in (1, 64, 256)
} | {"64x4-drafts": {"num_sequences": 64, "num_tokens": 4, "kept": 4} | QWEN3_NEXT}


def tile(key_dim, value_dim, block_v=32, num_warps=4):
    """(rows, columns, warps) of the state block of one program; never dependent on the batch."""
    return next_power_of_2(key_dim), min(block_v, next_power_of_2(value_dim)), num_warps


def cost(
    num_sequences,
    num_tokens,
    num_heads,
    num_value_heads,
    key_dim,
    value_dim,
    fresh=0,
    idle=0,
    kept=None,
    l2norm=True,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call with `num_tokens` tokens per sequence.

    fresh: sequences that start from zeros. idle: other sequences, without a slot. kept: None for the state after
    the last token, else for how many leading tokens of a sequence that is not idle the state is written.
    flops per element of the state and token: the decay, and a product and a sum for Sᵀk, for the update and for Sᵀq.
    """
    item, heads = ITEM_BYTES[dtype], num_sequences * num_value_heads
    programs = heads * ceil_div(value_dim, tile(key_dim, value_dim, **(config or {}))[1]) if num_tokens else 0
    state = num_value_heads * key_dim * value_dim * STATE_BYTES
    read = (num_sequences - fresh - idle) * state * (num_tokens > 0)
    written = (num_sequences - idle) * state * ((num_tokens > 0) if kept is None else kept)
    marks = num_sequences * (INDEX_BYTES + (fresh > 0)) + num_sequences * num_tokens * INDEX_BYTES * (kept is not None)
    rows = num_sequences * num_tokens * (2 * num_heads * key_dim + num_value_heads * value_dim) * item
    rates = heads * num_tokens * (4 + item)
    out = heads * num_tokens * value_dim * item
    per_token = 2 * key_dim * item + 4 + item + INDEX_BYTES * (kept is not None)
    return Cost(
        bytes_min=read + written + rows + rates + out + marks,
        flops=7 * heads * num_tokens * key_dim * value_dim,
        load_bytes=read + programs * (INDEX_BYTES + (fresh > 0) + num_tokens * per_token) + out,
        store_bytes=written + out,
        flops_issued=0,
    )

"""Cost of the permutation, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

INDEX_BYTES = 4
SMALL, LARGE = 128, 512  # slots of one program
COUNTED = 16  # slots that one step of a program compares with all of its own
# elements of one program that copies: short rows share one, long ones are cut
CONFIGS = {"2048 elements": {"elements": 2048}, "4096 elements": {"elements": 4096}}

# edges around 128 slots of a program and 2 programs added up at once; hidden around powers of two; experts that are
# none; from 4097 slots on larger programs
TESTS = [
    {"num_tokens": 0, "top_k": 2, "hidden": 16, "num_experts": 4},
    {"num_tokens": 1, "top_k": 1, "hidden": 1, "num_experts": 1},
    {"num_tokens": 1, "top_k": 8, "hidden": 127, "num_experts": 128},
    *({"num_tokens": num_tokens, "top_k": 1, "hidden": 8, "num_experts": 7} for num_tokens in (127, 128, 129)),
    {"num_tokens": 33, "top_k": 4, "hidden": 129, "num_experts": 3, "dropped": 50},
    {"num_tokens": 5, "top_k": 3, "hidden": 128, "num_experts": 8, "dropped": 15},
    {"num_tokens": 30, "top_k": 10, "hidden": 64, "num_experts": 512},
    {"num_tokens": 16, "top_k": 6, "hidden": 2049, "num_experts": 384, "first_expert": 96, "dropped": 40},
    {"num_tokens": 516, "top_k": 8, "hidden": 2, "num_experts": 60, "dropped": 9},
]
QWEN3 = {"top_k": 8, "hidden": 2048, "num_experts": 128}
DEEPSEEK_V3 = {"top_k": 8, "hidden": 7168, "num_experts": 256}
BENCH = {
    f"{name}-{num_tokens}": {"num_tokens": num_tokens} | shape
    for name, shape in (("qwen3", QWEN3), ("deepseek-v3", DEEPSEEK_V3))
    for num_tokens in (64, 8192)
} | {
    # one of four ranks: three quarters of the slots are another's
    "deepseek-v3-ep4-8192": {"num_tokens": 8192, "dropped": 49152, "first_expert": 64}
    | DEEPSEEK_V3
    | {"num_experts": 64}
}


def slots_per_program(num_slots):
    """Slots of one program that counts or places: whole numbers come out, the same for every choice."""
    return SMALL if num_slots <= 32 * SMALL else LARGE


def copy_tile(hidden, elements=2048):
    """(rows, columns, programs side by side) of the programs that copy."""
    block = min(next_power_of_2(hidden), elements)
    return elements // block, block, ceil_div(hidden, block)


def cost(num_tokens, top_k, hidden, num_experts, dropped=0, first_expert=0, dtype="bfloat16", config=None):
    """Cost of one call. dropped: how many (token, slot) pairs belong to no expert that is here.

    bytes_min counts each kept token's row once, at most as many tokens as there are kept slots. flops: none, rows are
    copied and whole numbers counted.
    """
    slots, item = num_tokens * top_k, ITEM_BYTES[dtype]
    kept = slots - dropped
    programs = max(1, ceil_div(slots, slots_per_program(slots)))
    counts = programs * (num_experts + 1) * INDEX_BYTES
    *_, copies_per_row = copy_tile(hidden, **(config or {}))
    maps = 2 * slots * INDEX_BYTES + (num_experts + 1) * INDEX_BYTES
    return Cost(
        bytes_min=min(num_tokens, kept) * hidden * item + slots * INDEX_BYTES + slots * hidden * item + maps,
        flops=0,
        load_bytes=(
            # counting; placing: its own slots, those that it compares them with, all counts
            slots * INDEX_BYTES
            + 2 * slots * INDEX_BYTES
            + programs * counts
            # copying
            + slots * copies_per_row * INDEX_BYTES
            + kept * hidden * item
        ),
        store_bytes=counts + maps + slots * hidden * item,
        flops_issued=0,
    )

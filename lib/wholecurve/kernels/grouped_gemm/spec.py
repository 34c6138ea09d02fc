"""Cost of the grouped product, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, matrix_unit, next_power_of_2

OFFSET_BYTES = 4
# rows and columns of a tile of the output, the step along in_features, and whether tiles are loaded by tensor
# descriptors (the TMA unit of sm_90 and later) or through pointers
CONFIGS = {
    "64x256": {"rows": 64, "columns": 256, "depth": 64, "num_warps": 4, "num_stages": 3, "tma": False},
    "64x256 tma": {"rows": 64, "columns": 256, "depth": 64, "num_warps": 4, "num_stages": 3, "tma": True},
    "128x256 tma": {"rows": 128, "columns": 256, "depth": 64, "num_warps": 8, "num_stages": 3, "tma": True},
    "128x128 tma": {"rows": 128, "columns": 128, "depth": 64, "num_warps": 4, "num_stages": 3, "tma": True},
    "16x128": {"rows": 16, "columns": 128, "depth": 128, "num_warps": 4, "num_stages": 3, "tma": False},
    "16x128 tma": {"rows": 16, "columns": 128, "depth": 128, "num_warps": 4, "num_stages": 4, "tma": True},
}
BY_DESCRIPTORS = {"tma": True}  # the own choice where there are descriptors, for the formula
SLOTS_TOGETHER = 8  # slots whose column tiles run one after another

# empty experts first, last and in the middle, one row each, all rows on one, rows around a tile of 64, a tail that
# belongs to none, features that no tile divides
TESTS = [
    {"rows_per_expert": [0, 0], "in_features": 16, "out_features": 16},
    {"rows_per_expert": [0, 0, 0], "in_features": 16, "out_features": 16, "tail": 5},
    {"rows_per_expert": [1], "in_features": 1, "out_features": 1},
    {"rows_per_expert": [0, 5, 0], "in_features": 32, "out_features": 24},
    {"rows_per_expert": [0, 0, 5, 0, 0, 3, 0], "in_features": 40, "out_features": 72, "tail": 2},
    {"rows_per_expert": [1] * 9, "in_features": 65, "out_features": 33},
    {"rows_per_expert": [63, 64, 65], "in_features": 72, "out_features": 40},
    {"rows_per_expert": [0, 0, 129, 0], "in_features": 64, "out_features": 264},
    {"rows_per_expert": [127, 0, 1, 2], "in_features": 200, "out_features": 257, "tail": 70},
    {"rows_per_expert": {"tokens": 9, "top_k": 2, "experts": 5, "routing": "skewed"}, "in_features": 24}
    | {"out_features": 16},
]
MODELS = {  # experts, top k, hidden, intermediate
    "qwen3": (128, 8, 2048, 768),
    "deepseek-v3": (256, 8, 7168, 2048),
}
BENCH = {
    f"{model}-{name}-{tokens}{'' if routing == 'balanced' else '-' + routing}": {
        "rows_per_expert": {"tokens": tokens, "top_k": top_k, "experts": experts, "routing": routing},
        "in_features": in_features,
        "out_features": out_features,
    }
    for model, (experts, top_k, hidden, intermediate) in MODELS.items()
    for name, in_features, out_features in (("gate-up", hidden, 2 * intermediate), ("down", intermediate, hidden))
    for tokens, routing in ((64, "balanced"), (8192, "balanced"), (8192, "skewed"))
}
# a layer of 8 experts that is small enough to be checked and timed on a CPU
CPU_BENCH = {
    f"small-{name}-{tokens}": {
        "rows_per_expert": {"tokens": tokens, "top_k": 2, "experts": 8, "routing": "balanced"},
        "in_features": in_features,
        "out_features": out_features,
    }
    for name, in_features, out_features in (("gate-up", 576, 512), ("down", 256, 576))
    for tokens in (64, 512)
}


def expand_rows(rows_per_expert):
    """Rows of each expert, a list: the list itself, or by the rule of a dict.

    {"tokens", "top_k", "experts", "routing"} spreads tokens · top_k rows: "balanced" as evenly as it goes, "one" all
    to the first expert, "skewed" in proportion to 1, 1/2, 1/3 …, at most `tokens` for one expert, what is over to the
    next that has room.
    """
    if not isinstance(rows_per_expert, dict):
        return list(rows_per_expert)
    tokens, experts = rows_per_expert["tokens"], rows_per_expert["experts"]
    rows, routing = tokens * rows_per_expert["top_k"], rows_per_expert["routing"]
    if routing == "one":
        return [rows] + [0] * (experts - 1)
    if routing == "balanced":
        return [rows // experts + (expert < rows % experts) for expert in range(experts)]
    harmonic = sum(1 / (expert + 1) for expert in range(experts))
    spread = [min(tokens, int(rows / (expert + 1) / harmonic)) for expert in range(experts)]
    for expert in range(experts):
        spread[expert] += min(tokens - spread[expert], rows - sum(spread))
    return spread


def tile(dtype, rows=None, columns=None, depth=None, num_warps=4, num_stages=3, tma=None):
    """(rows, columns, depth) of a tile, (warps, stages), and whether to use descriptors (None: where they can be).

    The kernel's own choice is one tile for every number of rows, so that a row's sum has the same order in every
    batch. fp32 products do not run on matrix units and take a smaller one.
    """
    if rows is None:
        rows, columns, depth = (32, 64, 32) if matrix_unit(dtype) == "vector" else (64, 256, 64)
    return rows, columns, depth, num_warps, num_stages, tma


def num_slots(rows, num_experts, tile_rows):
    """Tiles of rows that always suffice: expert e begins at slot offsets[e] // tile_rows + e, the tail is the last."""
    return rows // tile_rows + num_experts + 1 if rows else 0


def cost(rows_per_expert, in_features, out_features, tail=0, dtype="bfloat16", config=None):
    """Cost of one call. tail: rows behind those of the last expert. Without a config that says otherwise the tiles are
    loaded through pointers, which skip what is not there; descriptors also load what follows an expert's rows.
    """
    spread, item = expand_rows(rows_per_expert), ITEM_BYTES[dtype]
    tile_rows, tile_columns, depth, *_, tma = tile(dtype, **(config or {}))
    num_experts, kept = len(spread), sum(spread)
    rows = kept + tail
    column_tiles, touched = ceil_div(out_features, tile_columns), sum(count > 0 for count in spread)
    slots = num_slots(rows, num_experts, tile_rows)
    first_tail_slot = kept // tile_rows + num_experts
    # offsets are read whole by every program, then the start and the end of its expert; the tail has no end there
    offsets = slots * (num_experts + 2) + min(slots, first_tail_slot)
    row_loads, column_loads, tiles = 0, 0, 0
    start = 0
    for expert, count in enumerate(spread):
        for first in range(start, start + count, tile_rows):
            tiles += 1
            row_loads += min(tile_rows, (rows if tma else start + count) - first)
            column_loads += weight_rows(expert, num_experts, out_features, tile_columns, tma)
        start += count
    return Cost(
        bytes_min=(kept * in_features + touched * out_features * in_features + rows * out_features) * item
        + (num_experts + 1) * OFFSET_BYTES,
        flops=2 * kept * out_features * in_features,
        unit=matrix_unit(dtype),
        load_bytes=(row_loads * column_tiles + column_loads) * in_features * item
        + column_tiles * offsets * OFFSET_BYTES,
        store_bytes=rows * out_features * item,
        flops_issued=2 * tiles * column_tiles * tile_rows * tile_columns * ceil_div(in_features, depth) * depth,
    )


def weight_rows(expert, num_experts, out_features, tile_columns, tma):
    """Rows of [E · out_features, in_features] that the column tiles of one expert load together."""
    if not tma:
        return out_features
    ends = (num_experts - expert) * out_features  # the descriptor knows all experts as one matrix
    return sum(min(tile_columns, ends - first) for first in range(0, out_features, tile_columns))


def block_experts(num_experts):
    """Lanes that hold all offsets."""
    return next_power_of_2(num_experts + 1)

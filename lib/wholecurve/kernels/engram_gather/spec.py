"""Cost of the lookup, its test cases and its bench cases."""

import math

from wholecurve.kernels.cost import ITEM_BYTES, Cost, next_power_of_2

SCALE_BYTES = {"float32": 4, "float8_e8m0fnu": 1}
# elements of one program: several short rows share one
CONFIGS = {
    "2048 elements": {"elements": 2048},
    "4096 elements": {"elements": 4096},
    "8192 elements": {"elements": 8192},
}


def case(num_tokens, heads, width, distinct_rows, table_rows=50, **rest):
    """A case; see `cost`."""
    return {
        **{"num_tokens": num_tokens, "heads": heads, "width": width, "distinct_rows": distinct_rows},
        **{"table_rows": table_rows, **rest},
    }


# widths around powers of two, programs of 16 rows of 256 that end in the middle of a token, one row for all
TESTS = [
    case(0, 24, 64, 0),
    case(1, 1, 1, 1, table_rows=1),
    case(3, 5, 127, 15),
    case(2, 3, 128, 4),
    case(5, 2, 129, 1),
    case(3, 24, 256, 40),
    case(2, 2, 5000, 3),
    case(0, 2, 64, 0, groups=2, scale_dtype="float32"),
    case(1, 1, 32, 1, groups=1, scale_dtype="float8_e8m0fnu"),
    case(3, 24, 256, 50, groups=8, scale_dtype="float8_e8m0fnu"),
    case(7, 3, 96, 9, groups=3, scale_dtype="float32"),
    case(2, 9, 60, 17, groups=5, scale_dtype="float8_e8m0fnu"),
]
# DeepSeek-V4.1: 24 rows of 256 a token, fp8 with 8 scales of one byte. Its tables have 384 million rows; 4 million
# (1 GiB in fp8) are far beyond any cache too. All rows differ, as they nearly do in running text of no repetition.
V41 = {"heads": 24, "width": 256, "table_rows": 2**22}
FP8 = {"groups": 8, "scale_dtype": "float8_e8m0fnu"}
BENCH = {
    "64x24x256": case(64, distinct_rows=64 * 24, **V41),
    "8192x24x256": case(8192, distinct_rows=8192 * 24, **V41),
    "64x24x256-fp8": case(64, distinct_rows=64 * 24, **V41, **FP8),
    "8192x24x256-fp8": case(8192, distinct_rows=8192 * 24, **V41, **FP8),
}
CPU_BENCH = {
    f"small-{tokens}x24x256": case(tokens, distinct_rows=tokens * 24, **(V41 | {"table_rows": 2**17}))
    for tokens in (1, 64)
}


def tile(width, groups=None, elements=4096):
    """(rows, groups, values of a group) of one program, powers of two; without scales a row is one group."""
    group = next_power_of_2(width if groups is None else width // max(1, groups))
    columns = 1 if groups is None else next_power_of_2(groups)
    return max(1, elements // (group * columns)), columns, group


def cost(
    num_tokens,
    heads,
    width,
    distinct_rows,
    table_rows,
    groups=None,
    scale_dtype=None,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call; bytes_min counts a row once however many tokens ask for it.

    distinct_rows: different rows among the num_tokens · heads that are asked for. groups: scales of a row, which make
    the table float8_e4m3fn; without them it is in dtype. dtype: of the result. Neither the size of the table nor the
    tile matters. flops: the products with scales.
    """
    row_bytes = width * ITEM_BYTES[dtype]
    if groups is not None:
        row_bytes = width + groups * SCALE_BYTES[scale_dtype]
    asked = num_tokens * heads
    out = asked * width * ITEM_BYTES[dtype]
    return Cost(
        bytes_min=distinct_rows * row_bytes + 8 * asked + out,
        flops=0 if groups is None else asked * width,
        load_bytes=asked * (row_bytes + 8),
        store_bytes=out,
        flops_issued=0,
    )


def sector_bytes(num_rows, row_bytes, sector=32):
    """Bytes that memory moves for `num_rows` random rows of `row_bytes` each, in whole sectors of `sector` bytes.

    Rows lie one behind the other from the start of a sector, so a row begins at any multiple of gcd(row_bytes, sector)
    with the same chance and touches one sector more than it fills if it crosses a boundary. The mean over these places,
    rounded up: 32 for DRAM of a GPU, 64 for a CPU's cache line, 128 for a line of L2 and for what crosses PCIe.
    """
    step = math.gcd(row_bytes, sector)
    places = range(0, sector, step)
    touched = sum((place + row_bytes - 1) // sector + 1 for place in places) if row_bytes else 0
    return -(-num_rows * touched * sector // len(places))

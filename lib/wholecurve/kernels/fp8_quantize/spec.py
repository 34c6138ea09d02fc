"""Cost of block-wise fp8 quantisation, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div

SCALE_BYTES = 4
# elements of one program: blocks below each other share one
CONFIGS = {
    "1024 elements": {"elements": 1024},
    "2048 elements": {"elements": 2048},
    "4096 elements": {"elements": 4096},
}

# edges around a block, around a program (16 blocks of 1 × 128, 2 of 32 × 32) and blocks cut on both sides
TESTS = [
    {"num_rows": num_rows, "in_features": in_features, "block": block, "scale_format": scale_format}
    for num_rows, in_features, block, scale_format in [
        *((0, 128, (1, 128), "float32"), (3, 0, (1, 128), "float32"), (1, 1, (1, 128), "ue8m0")),
        *((1, 127, (1, 128), "float32"), (15, 128, (1, 128), "ue8m0"), (16, 129, (1, 128), "float32")),
        *((17, 200, (1, 128), "ue8m0"), (2, 7168, (1, 128), "float32"), (33, 384, (1, 128), "float32")),
        *((127, 129, (128, 128), "float32"), (128, 128, (128, 128), "ue8m0"), (129, 200, (128, 128), "ue8m0")),
        *((1, 31, (32, 32), "ue8m0"), (32, 64, (32, 32), "float32"), (97, 65, (32, 32), "ue8m0")),
        *((5, 12, (4, 8), "float32"), (9, 70, (1, 32), "ue8m0")),
    ]
]
BENCH = {
    "64x7168": {"num_rows": 64, "in_features": 7168},
    "8192x7168": {"num_rows": 8192, "in_features": 7168},
    "8192x7168-ue8m0": {"num_rows": 8192, "in_features": 7168, "scale_format": "ue8m0"},
    "weight-24576x1536": {"num_rows": 24576, "in_features": 1536, "block": (128, 128)},
    "weight-5120x6144-ue8m0": {"num_rows": 5120, "in_features": 6144, "block": (32, 32), "scale_format": "ue8m0"},
}


def tile(block, elements=2048):
    """(blocks below each other, warps) of one program; never dependent on the number of rows."""
    blocks = max(1, elements // (block[0] * block[1]))
    return blocks, 8 if blocks * block[0] * block[1] > 4096 else 4


def cost(num_rows, in_features, block=(1, 128), scale_format="float32", dtype="bfloat16", config=None):
    """Cost of one call, which neither the format of the scales nor the tile changes: everything moves once.

    flops per element: the maximum and the division; per block the division by 448.
    """
    elements = num_rows * in_features
    blocks = ceil_div(num_rows, block[0]) * ceil_div(in_features, block[1])
    read, written = elements * ITEM_BYTES[dtype], elements + blocks * SCALE_BYTES
    return Cost(
        bytes_min=read + written,
        flops=2 * elements + blocks,
        load_bytes=read,
        store_bytes=written,
        flops_issued=0,
    )

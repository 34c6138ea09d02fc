"""Cost of top-k, its test cases and its bench cases."""

from wholecurve.kernels.cost import Cost, next_power_of_2

CONFIGS = {
    "4 bits": {"bits": 4},
    "blocks of 2048": {"block": 2048, "num_warps": 8},
    "blocks of 1024": {"block": 1024, "num_warps": 4},
    "rows kept to 4096": {"kept": 4096},
    "not pipelined": {"stages": 1},
}

# rows around k, the longest that is kept (8192) and the block (4096); what ties: `subject.values_of`. The last score
# that is taken is one of the zeros of both signs of "bits", and one of the inf and NaN of "holes"
TESTS = [
    {"lengths": lengths, "width": width, "k": k, "values": values}
    for lengths, width, k, values in [
        ([], 7, 3, "normal"),
        ([0], 0, 2, "normal"),
        ([1], 1, 1, "normal"),
        ([5, 5], 5, 5, "normal"),
        ([5, 0, 3], 9, 7, "normal"),
        ([127, 128, 129], 129, 128, "normal"),
        ([1000, 999], 1000, 64, "relu"),
        ([300], 300, 299, "equal"),
        ([300, 20], 300, 130, "bits"),
        ([200, 30], 201, 25, "holes"),
        ([4096, 8191, 8192], 8192, 2048, "relu"),
        ([8193], 8193, 5000, "normal"),
        ([9000, 4100], 9001, 512, "equal"),
    ]
] + [{"lengths": None, "num_rows": 3, "width": 130, "k": 20, "values": "relu"}]
BENCH = {
    "256x131072-k2048": {"lengths": [131072] * 256, "width": 131072, "k": 2048, "values": "relu"},
    "1x131072-k2048": {"lengths": [131072], "width": 131072, "k": 2048, "values": "relu"},
    "64x65536-k512": {"lengths": [65536] * 64, "width": 65536, "k": 512, "values": "relu"},
    "256x8192-k512": {"lengths": [8192] * 256, "width": 8192, "k": 512, "values": "relu"},
    "prefill-4096x32768-k2048": {
        "lengths": [28673 + row for row in range(4096)],
        **{"width": 32768, "k": 2048, "values": "relu"},
    },
}


def tile(width, bits=8, kept=8192, block=4096, num_warps=16, stages=3):
    """(bits of a digit, scores of a block, warps, blocks in flight) of the Triton form.

    A row up to `kept` is one block, which is read once and stays in registers: more would not fit.
    """
    if width <= kept:
        block = max(256, next_power_of_2(width))
    return bits, block, min(num_warps, block // 256), stages


def cost(lengths, width, k, values="normal", num_rows=None, config=None):
    """Cost of one call; lengths None stands for `num_rows` rows of the full width.

    The Triton form reads a row once per digit and once more, or once where a block holds it. Comparisons are no flops.
    """
    rows = [width] * num_rows if lengths is None else lengths
    bits, block, *_ = tile(width, **(config or {}))
    passes = 1 if width <= block else 32 // bits + 1
    length_bytes = 4 * len(rows) * (lengths is not None)
    results = 4 * len(rows) * k
    return Cost(
        bytes_min=4 * sum(rows) + length_bytes + results,
        flops=0,
        load_bytes=4 * sum(rows) * passes + length_bytes,
        store_bytes=results,
        flops_issued=0,
    )

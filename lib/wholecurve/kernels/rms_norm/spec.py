"""Cost of RMSNorm, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

MAX_HIDDEN = 65536
# elements of one program: short rows share one
CONFIGS = {"2048 elements": {"elements": 2048}, "4096 elements": {"elements": 4096}}

# edges around the tile (16 rows of 128, 1 row from 2048 on) and around powers of two
TESTS = [
    {"num_tokens": num_tokens, "hidden": hidden, "has_residual": has_residual}
    for num_tokens, hidden, has_residual in [
        *((0, 128, True), (1, 1, False), (3, 2, True), (1, 128, False), (15, 128, True), (16, 128, True)),
        *((17, 128, False), (5, 127, True), (5, 129, True), (70, 64, False), (2, 2047, True), (2, 2048, True)),
        *((3, 2049, False), (2, 7168, True), (1, 16385, False)),
    ]
]
# both styles with each kind of weight
TESTS += [
    {"num_tokens": 9, "hidden": 200, "has_residual": has_residual, "weight": weight, "style": style}
    for weight, style, has_residual in [
        *(("input", "gemma", True), ("float32", "llama", True), ("float32", "gemma", False)),
        *(("none", "llama", False), ("none", "gemma", True)),
    ]
]
# rows whose mean square is about eps, and rows of zeros
TESTS += [{"num_tokens": 5, "hidden": 130, "x_scale": x_scale} for x_scale in (1e-3, 0.0)]
BENCH = {
    f"{num_tokens}x{hidden}": {"num_tokens": num_tokens, "hidden": hidden, "has_residual": True}
    for hidden in (4096, 7168)
    for num_tokens in (1, 64, 8192)
} | {
    "8192x4096-plain": {"num_tokens": 8192, "hidden": 4096, "has_residual": False},
    "qk-64x8192x128": {"num_tokens": 8192 * 64, "hidden": 128, "has_residual": False},
}


def tile(hidden, elements=2048):
    """(rows, columns, warps) of one program of the Triton form; never dependent on the number of tokens."""
    block = next_power_of_2(hidden)
    return max(1, elements // block), block, 4 if block <= 4096 else 8 if block <= 16384 else 16


def cost(
    num_tokens,
    hidden,
    has_residual=False,
    weight="input",
    style="llama",
    x_scale=1.0,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call. A residual adds one tensor read and one written.

    weight: "input" (the dtype of x), "float32" or "none". x_scale: of the values in x, which cost nothing.
    flops per element: the square, its sum, the product with 1/rms and the product with the weight (with the sum 1 + w
    of gemma, once for each element of the weight, and the residual sum); per row the division by the width and the sum
    with eps. The square roots are not counted.
    """
    elements, item = num_tokens * hidden, ITEM_BYTES[dtype]
    weight_bytes = {"input": item, "float32": 4, "none": 0}[weight] * hidden
    tensors = 2 if has_residual else 1  # read, and as many written
    programs = ceil_div(num_tokens, tile(hidden, **(config or {}))[0])
    products = 3 + (weight != "none") + has_residual
    return Cost(
        bytes_min=2 * tensors * elements * item + weight_bytes * (num_tokens > 0),
        flops=products * elements + 2 * num_tokens + hidden * (style == "gemma" and weight != "none"),
        load_bytes=tensors * elements * item + programs * weight_bytes,
        store_bytes=tensors * elements * item,
        flops_issued=0,
    )

"""The rows that a profile consists of: one schema for static, measured and bounded numbers. Loads no triton."""

# changes when how anything here is measured or counted changes; stored in every row
HARNESS = 1

COLUMNS = (
    *("kernel", "case", "launch", "form", "source", "target", "device", "dtype"),
    *("registers", "spill_bytes", "stack_bytes", "shared_bytes", "num_warps", "occupancy", "matrix", "copies"),
    *("bytes_min", "bytes_model", "flops", "flops_issued", "bound_us", "bound_by"),
    *("median_us", "p10_us", "p90_us", "n_samples", "calls", "threads", "cache", "attained", "method", "clocks"),
    *("unit", "versions", "harness", "note"),
)
# absent in rows of other sources: whole numbers that a frame must not turn into floats
INTEGERS = (
    *("registers", "spill_bytes", "stack_bytes", "shared_bytes", "num_warps"),
    *("bytes_min", "bytes_model", "flops", "flops_issued", "n_samples", "calls", "threads", "harness"),
)
STATIC = "static (compiled, not run)"
MEASURED_GPU = "measured (gpu)"
MEASURED_CPU = "measured (cpu)"


def row(**fields):
    """A row with every column; what is not given is None. ValueError for a column that does not exist."""
    unknown = set(fields) - set(COLUMNS)
    if unknown:
        raise ValueError(f"a profile row has no column {', '.join(sorted(unknown))}")
    return dict.fromkeys(COLUMNS) | {"harness": HARNESS} | fields


def cost_fields(cost, limit):
    """The columns of a Cost and of its Bound (or None)."""
    return {
        "bytes_min": cost.bytes_min,
        "bytes_model": cost.bytes_model,
        "flops": cost.flops,
        "flops_issued": cost.flops_issued,
        "unit": cost.unit,
        "bound_us": None if limit is None else limit.us,
        "bound_by": None if limit is None else f"{limit.limit.quantity.partition('_')[0]}, {limit.limit.kind}",
    }


def families(counts):
    """Instruction families as one word: "wgmma 8, mma 2"."""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def triton_version():
    """Such as "triton 3.7.1"."""
    import triton  # here, because figures read rows and load no triton

    return f"triton {triton.__version__}"

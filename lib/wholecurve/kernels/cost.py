"""What an operation costs by formula: the numbers that rooflines and counters are compared with."""

import dataclasses

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one call costs.

    bytes_min: every distinct input and output byte once. flops: algorithmic, 2 per multiply-add, unmasked pairs
    only. unit: what the flops run on and are set against: "bfloat16" or "float8" for matrix units, "vector" for
    everything else (fp32 products in full precision too).
    load_bytes, store_bytes: what the Triton form asks of memory, with its re-reads and partial results and without
    a cache. flops_issued: products as its tiles execute them, padding included. These three are None for an
    operation that has no Triton form.
    """

    bytes_min: int
    flops: int
    unit: str = "vector"
    load_bytes: int | None = None
    store_bytes: int | None = None
    flops_issued: int | None = None

    @property
    def bytes_model(self):
        """load_bytes + store_bytes, None without a Triton form."""
        return None if self.load_bytes is None else self.load_bytes + self.store_bytes

    @property
    def intensity(self):
        """FLOPs per compulsory byte."""
        return self.flops / self.bytes_min if self.bytes_min else 0.0


def ceil_div(amount, step):
    """How many steps cover the amount."""
    return -(-amount // step)


def next_power_of_2(number):
    """The smallest power of two that is at least `number` (1 for 0)."""
    return 1 << max(0, number - 1).bit_length()


def matrix_unit(dtype):
    """The unit that products of this dtype run on: 16-bit floats on one, fp8 on another, wider ones on none."""
    if dtype in ("bfloat16", "float16"):
        return "bfloat16"
    return "float8" if dtype.startswith("float8") else "vector"

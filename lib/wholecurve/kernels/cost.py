"""What an operation costs by formula: the numbers that rooflines and counters are compared with."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """bytes_min: every distinct input and output byte once. bytes_model: what the Triton form asks of memory,
    with its re-reads and partial results and without a cache. flops: algorithmic, 2 per multiply-add,
    unmasked pairs only. flops_issued: products as the Triton form's tiles execute them, padding included.
    bytes_model and flops_issued are None for an operation that has no Triton form.
    """

    bytes_min: int
    flops: int
    bytes_model: int | None = None
    flops_issued: int | None = None


def ceil_div(amount, step):
    """How many steps cover the amount."""
    return -(-amount // step)


def next_power_of_2(number):
    """The smallest power of two that is at least `number` (1 for 0)."""
    return 1 << max(0, number - 1).bit_length()

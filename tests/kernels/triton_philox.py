"""A kernel that stores Triton's own random words, to hold those of `wholecurve.kernels.sampling.philox` against."""

import triton
import triton.language as tl


@triton.jit
def words_kernel(
    seeds,  # [N] int64
    steps,  # [N] int64
    words,  # [N, 8] int64: of `tl.randint4x`, then of stream 1
):
    """One program stores the words of one seed and step."""
    row = tl.program_id(0)
    seed, step = tl.load(seeds + row), tl.load(steps + row)
    a, b, c, d = tl.randint4x(seed, step)
    tl.store(words + row * 8, a.to(tl.int64))
    tl.store(words + row * 8 + 1, b.to(tl.int64))
    tl.store(words + row * 8 + 2, c.to(tl.int64))
    tl.store(words + row * 8 + 3, d.to(tl.int64))
    low, high = step.to(tl.uint32), (step >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0 + 1, low * 0)
    tl.store(words + row * 8 + 4, a.to(tl.int64))
    tl.store(words + row * 8 + 5, b.to(tl.int64))
    tl.store(words + row * 8 + 6, c.to(tl.int64))
    tl.store(words + row * 8 + 7, d.to(tl.int64))

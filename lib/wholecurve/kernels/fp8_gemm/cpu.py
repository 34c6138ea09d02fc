"""The block-scaled fp8 product on a CPU: multiply the scales in, then one float32 product."""

import torch
import torch.nn.functional as F

from wholecurve.kernels.fp8_gemm.reference import BLOCK
from wholecurve.kernels.fp8_quantize.cpu import fp8_to_float
from wholecurve.kernels.fp8_quantize.reference import spread

ROWS = 4  # the float32 product sums the rows of an incomplete tile of 4 in another order


def fp8_gemm_cpu(a, a_scales, b, b_scales, out_dtype=torch.bfloat16):
    """See `wholecurve.kernels.fp8_gemm.fp8_gemm`. A row's bits do not depend on how many rows there are."""
    left = fp8_to_float(a).mul_(spread(a_scales, (1, BLOCK), a.shape))
    right = fp8_to_float(b).mul_(spread(b_scales, (BLOCK, BLOCK), b.shape))
    whole = F.pad(left, (0, 0, 0, -a.shape[0] % ROWS))
    return F.linear(whole, right)[: a.shape[0]].to(out_dtype)

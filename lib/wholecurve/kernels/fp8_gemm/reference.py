"""The block-scaled fp8 product, the definition: DeepSeek-V3 report, https://arxiv.org/abs/2412.19437, section 3.3.2.

out[t, n] = Σ over blocks j of in_features: a_scales[t, j] · b_scales[n // 128, j] · Σ over k in j: a[t, k] · b[n, k]
"""

import torch

BLOCK = 128


def fp8_gemm_reference(a, a_scales, b, b_scales, out_dtype=torch.bfloat16):
    """See `wholecurve.kernels.fp8_gemm.fp8_gemm`. Sums in the dtype of the scales."""
    wide = a_scales.dtype
    total = torch.zeros(a.shape[0], b.shape[0], dtype=wide, device=a.device)
    for block in range(a_scales.shape[1]):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        column_scales = b_scales[:, block].repeat_interleave(BLOCK)[: b.shape[0]]
        product = a[:, columns].to(wide) @ b[:, columns].to(wide).T
        total += product * a_scales[:, block, None] * column_scales
    return total.to(out_dtype)

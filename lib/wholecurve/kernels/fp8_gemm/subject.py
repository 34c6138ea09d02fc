"""The block-scaled fp8 product as the laboratory sees it."""

import torch

from wholecurve.kernels.fp8_gemm import FORMS, fp8_gemm, spec
from wholecurve.kernels.fp8_quantize.reference import dequantize
from wholecurve.kernels.inputs import as_dtype
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, num_tokens, out_features, in_features, column_major=False, dtype="bfloat16"):
    """Arguments of `fp8_gemm` for a case."""
    in_blocks, out_blocks = -(-in_features // spec.BLOCK), -(-out_features // spec.BLOCK)
    if column_major:
        a_scales = inputs.uniform(in_blocks, num_tokens, low=0.5, high=1.5).T
    else:
        a_scales = inputs.uniform(num_tokens, in_blocks, low=0.5, high=1.5)
    return {
        "a": inputs.normal(num_tokens, in_features, dtype="float8_e4m3fn"),
        "a_scales": a_scales,
        "b": inputs.normal(out_features, in_features, dtype="float8_e4m3fn"),
        "b_scales": inputs.uniform(out_blocks, in_blocks, low=0.005, high=0.02),
        "out_dtype": as_dtype(dtype),
    }


def expected(a, a_scales, b, b_scales, out_dtype=torch.bfloat16):
    """The product of the dequantised matrices in float64.

    Allowed are 2⁻¹² of Σ|a||b|, for matrix units that keep 14 bits of each of the four sums in a block, and the
    rounding of the output.
    """
    left, right = dequantize(a, a_scales.double()), dequantize(b, b_scales.double(), (spec.BLOCK, spec.BLOCK))
    eps = torch.finfo(out_dtype).eps
    scale = left.abs() @ right.abs().T
    return (Expected(left @ right.T, ulps=2.0**-12 / eps, rtol=0.51 * eps, scale=scale),)


def eager(a, a_scales, b, b_scales, out_dtype=torch.bfloat16):
    """What a model without an fp8 product does: both matrices back to float32, then their product."""
    left, right = dequantize(a, a_scales), dequantize(b, b_scales, (spec.BLOCK, spec.BLOCK))
    return (left @ right.T).to(out_dtype)


SUBJECT = Subject("fp8_gemm", fp8_gemm, FORMS, spec, make, expected, baselines={"eager": eager})

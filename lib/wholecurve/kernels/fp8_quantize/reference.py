"""Block-wise fp8 quantisation, the definition: DeepSeek-V3 report, https://arxiv.org/abs/2412.19437, section 3.3."""

import torch
import torch.nn.functional as F

LARGEST = 448.0  # of float8_e4m3fn
SMALLEST_SCALE = 2.0**-126


def fp8_quantize_reference(x, block=(1, 128), scale_format="float32"):
    """See `wholecurve.kernels.fp8_quantize.fp8_quantize`. Scales and quotients in float32."""
    scales = block_scales(x, block, scale_format)
    return (x.float() / spread(scales, block, x.shape)).to(torch.float8_e4m3fn), scales


def block_scales(x, block, scale_format):
    """The scale of every block, float32 [⌈M / rows⌉, ⌈K' / columns⌉]."""
    (rows, columns), (block_rows, block_columns) = x.shape, block
    magnitude = x.float().abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    # zeros outside x do not change a maximum of magnitudes
    whole = F.pad(magnitude, (0, -columns % block_columns, 0, -rows % block_rows))
    tiles = whole.unflatten(1, (-1, block_columns)) if columns else whole.view(len(whole), 0, block_columns)
    tiles = tiles.unflatten(0, (-1, block_rows)) if rows else tiles.view(0, block_rows, *tiles.shape[1:])
    scales = (tiles.amax(dim=(1, 3)) / LARGEST).clamp(min=SMALLEST_SCALE)
    return round_up_to_power_of_2(scales) if scale_format == "ue8m0" else scales


def round_up_to_power_of_2(scales):
    """The smallest power of two that is at least each of these positive float32 numbers; inf stays."""
    mantissa, exponent = torch.frexp(scales)  # mantissa in [0.5, 1)
    power = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
    return torch.where(scales.isinf(), scales, power)


def spread(scales, block, shape):
    """Each block's scale at each of its elements: [M, K']."""
    wide = scales.repeat_interleave(block[0], dim=0)[: shape[0]]
    return wide.repeat_interleave(block[1], dim=1)[:, : shape[1]]


def dequantize(q, scales, block=(1, 128)):
    """q · scales in the dtype of `scales`, [M, K']; the inverse of `fp8_quantize` up to its rounding."""
    return q.to(scales.dtype) * spread(scales, block, q.shape)

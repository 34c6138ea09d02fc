"""Block-wise fp8 quantisation as the laboratory sees it."""

import torch

from wholecurve.kernels.fp8_quantize import FORMS, fp8_quantize, spec
from wholecurve.kernels.fp8_quantize.reference import LARGEST, SMALLEST_SCALE, spread
from wholecurve.kernels.inputs import as_dtype
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, num_rows, in_features, block=(1, 128), scale_format="float32", dtype="bfloat16"):
    """Arguments of `fp8_quantize` for a case: rows of very different magnitude, every seventh one zeros."""
    x = inputs.normal(num_rows, in_features, dtype="float32")
    x *= torch.exp2(inputs.integers(-12, 8, num_rows, 1, dtype="float32"))
    x[6::7] = 0
    return {"x": x.to(as_dtype(dtype)), "block": block, "scale_format": scale_format}


def expected(x, block=(1, 128), scale_format="float32"):
    """The scales exactly; q within half a step of e4m3, which is 2⁻⁴ of the number and 2⁻¹⁰ of the subnormal ones.

    The quotient is rounded to float32 before, hence the little more than half.
    """
    scales = largest_of_blocks(x.double(), block) / LARGEST
    scales = scales.float().clamp(min=SMALLEST_SCALE).double()  # rounded once
    if scale_format == "ue8m0":
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    quotients = x.double() / spread(scales, block, x.shape)
    nearest = Expected(quotients, ulps=2.0**-7, rtol=2.0**-4 + 2.0**-23, scale=torch.ones_like(quotients[:1, :1]))
    return nearest, Expected(scales, ulps=0.0)


def largest_of_blocks(x, block):
    """max |x| of every block by way of max pooling."""
    if not x.numel():
        return x.new_zeros([-(-size // step) for size, step in zip(x.shape, block)])
    pooled = torch.nn.functional.max_pool2d(x.abs()[None, None], block, stride=block, ceil_mode=True)
    return pooled[0, 0]


def eager(x, block=(1, 128), scale_format="float32"):
    """What a model written in plain torch does, call by call."""
    rows, columns = x.shape
    whole = torch.nn.functional.pad(x, (0, -columns % block[1], 0, -rows % block[0])).float()
    tiles = whole.view(whole.shape[0] // block[0], block[0], whole.shape[1] // block[1], block[1])
    scales = (tiles.abs().amax(dim=(1, 3), keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    if scale_format == "ue8m0":
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    q = (tiles / scales).view(whole.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    return q, scales[:, 0, :, 0]


SUBJECT = Subject("fp8_quantize", fp8_quantize, FORMS, spec, make, expected, baselines={"eager": eager})

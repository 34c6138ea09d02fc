"""RMSNorm in as few torch calls as there are: at decode sizes a call costs more than its arithmetic."""

import functools

import torch
import torch.nn.functional as F

HALF_DTYPES = (torch.bfloat16, torch.float16)
# `x.to(dtype)` takes half as long again as these to read its arguments
CAST = {
    torch.bfloat16: torch.Tensor.bfloat16,
    torch.float16: torch.Tensor.half,
    torch.float32: torch.Tensor.float,
    torch.float64: torch.Tensor.double,
}


def rms_norm_cpu(x, weight, eps, residual=None, style="llama"):
    """See `wholecurve.kernels.rms_norm.rms_norm`; x may have any number of leading dimensions."""
    if residual is not None:
        x = x + residual
    if x.dtype in HALF_DTYPES:
        wide = x.float()  # memory of its own, so it may be written
        # one pass without a tensor of squares; a row's sum never depends on the other rows
        norm = torch.linalg.vector_norm(wide, 2, -1, True)
        wide.mul_(torch.addcmul(constant(eps), norm, norm, value=1 / max(1, x.shape[-1])).rsqrt_())
    else:
        wide = F.rms_norm(x, x.shape[-1:], None, eps)
    if weight is None:
        out = CAST[x.dtype](wide)
    elif style == "gemma":
        out = CAST[x.dtype](wide.mul_(weight.to(wide.dtype) + 1))
    else:
        out = CAST[x.dtype](wide).mul_(weight)
    return out if residual is None else (out, x)


@functools.cache
def constant(number):
    """A number as a tensor, made once: making it takes as long as the sum that it goes into."""
    with torch.inference_mode(False):  # one made inside could not be used outside
        return torch.tensor(number, dtype=torch.float32)

"""The lookup of Engram on a CPU: rows copied as they are, converted only where the dtype changes."""

import torch

from wholecurve.kernels.fp8_quantize.cpu import fp8_to_float


def engram_gather_cpu(table, rows, scales=None, out_dtype=None):
    """See `wholecurve.kernels.engram_gather.engram_gather`."""
    num_tokens, width = rows.shape[0], rows.shape[1] * table.shape[1]
    if scales is None:
        out = torch.embedding(table, rows).view(num_tokens, width)
        return out if out_dtype in (None, out.dtype) else out.to(out_dtype)
    picked = rows.flatten()
    # as bytes, which are copied many at once
    values = fp8_to_float(table.view(torch.uint8).index_select(0, picked).view(torch.float8_e4m3fn))
    if values.numel():
        factors = scales.index_select(0, picked).float() if scales.dtype == torch.float32 else of_bytes(scales, picked)
        values.view(len(picked), scales.shape[1], -1).mul_(factors[:, :, None])
    return values.to(out_dtype or torch.bfloat16).view(num_tokens, width)


def of_bytes(scales, picked):
    """fp32 scales of these rows, from scales of a byte each."""
    return scales.view(torch.uint8).index_select(0, picked).view(scales.dtype).float()

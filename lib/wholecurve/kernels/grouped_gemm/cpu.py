"""The grouped product in torch: one call per expert that has rows.

A row's bits do not depend on the other rows. The libraries sum an incomplete tile of rows in another order than a
whole one, so an expert gets a few rows more than it has: those that come next in x, whose own expert overwrites them.
"""

import itertools

import torch
import torch.nn.functional as F

# torch's fp32 product calls MKL. oneDNN's is the faster one, up to twice, but has more to do before it starts.
ONEDNN_FROM = 1 << 18  # weights of one expert
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def grouped_gemm_cpu(x, weights, offsets):
    """See `wholecurve.kernels.grouped_gemm.grouped_gemm`."""
    rows, dtype = len(x), x.dtype
    by_onednn = HAS_ONEDNN and dtype == torch.float32 and weights[0].numel() >= ONEDNN_FROM
    least, multiple = whole_rows(dtype, by_onednn)
    out = x.new_empty(rows, weights.shape[1])
    bounds = offsets.tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end == start:
            continue
        whole = start + max(least, -(-(end - start) // multiple) * multiple)
        inputs = x[start:whole] if whole <= rows else F.pad(x[start:], (0, 0, 0, whole - rows))
        if by_onednn:
            product = torch.ops.mkldnn._linear_pointwise(inputs, weights[expert], None, "none", [], "")
            out[start:end] = product[: end - start]
        elif whole <= rows:
            torch.mm(inputs, weights[expert].T, out=out[start:whole])
        else:
            out[start:] = torch.mm(inputs, weights[expert].T)[: rows - start]
    out[bounds[-1] :] = 0
    return out


def whole_rows(dtype, by_onednn):
    """(least, multiple): an expert's number of rows is raised to these."""
    if dtype == torch.bfloat16 or by_onednn:
        return 2, 1  # a single row takes another path
    if dtype == torch.float16:
        return 1, 1  # row by row anyway
    return 4, 4

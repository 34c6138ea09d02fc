"""Block-wise fp8 quantisation on a CPU: few rows at once, so that what is made of them stays in the cache."""

import functools

import torch
import torch.nn.functional as F

from wholecurve.kernels.fp8_quantize.reference import LARGEST, SMALLEST_SCALE

AT_ONCE = 2**19  # elements


def fp8_quantize_cpu(x, block=(1, 128), scale_format="float32"):
    """See `wholecurve.kernels.fp8_quantize.fp8_quantize`. The bits of the definition, by the same quotients."""
    (num_rows, in_features), (block_rows, block_columns) = x.shape, block
    if not x.numel():
        blocks = -(-num_rows // block_rows), -(-in_features // block_columns)
        return x.to(torch.float8_e4m3fn), torch.empty(blocks, dtype=torch.float32)
    right, below = -in_features % block_columns, -num_rows % block_rows
    if right or below:
        x = F.pad(x, (0, right, 0, below))  # zeros do not change a maximum of magnitudes
    rows, columns = x.shape
    tiles = x.view(rows // block_rows, block_rows, columns // block_columns, block_columns)
    if x.numel() <= AT_ONCE:
        q, scales = quantize_tiles(tiles, scale_format)
    else:
        q = torch.empty(tiles.shape, dtype=torch.float8_e4m3fn)
        scales = torch.empty(tiles.shape[0], 1, tiles.shape[2], 1)
        step = max(1, AT_ONCE // (block_rows * columns))
        for first in range(0, len(tiles), step):
            part = slice(first, first + step)
            q[part], scales[part] = quantize_tiles(tiles[part], scale_format)
    q, scales = q.view(rows, columns), scales.view(tiles.shape[0], tiles.shape[2])
    if right or below:  # as bytes, which are copied many at once
        q = q.view(torch.uint8)[:num_rows, :in_features].contiguous().view(torch.float8_e4m3fn)
    return q, scales


def quantize_tiles(tiles, scale_format):
    """(q, scales with sizes 1 inside a block) of [blocks of rows, rows, blocks of columns, columns]."""
    tiles = tiles.float()
    largest = tiles.abs().amax(dim=3, keepdim=True)
    if tiles.shape[1] > 1:
        largest = largest.amax(dim=1, keepdim=True)
    scales = largest.div_(LARGEST).nan_to_num_(nan=torch.inf, posinf=torch.inf).clamp_(min=SMALLEST_SCALE)
    if scale_format == "ue8m0":
        # adding all mantissa bits carries into the exponent unless they are all 0
        scales.view(torch.int32).add_(0x7FFFFF).bitwise_and_(0x7F800000)
    return (tiles / scales).to(torch.float8_e4m3fn), scales


def fp8_to_float(q):
    """A float8_e4m3fn tensor in float32, from a table of all 256 numbers: a fifth of the time of torch's conversion."""
    return numbers().index_select(0, q.view(torch.uint8).int().flatten()).view(q.shape)


@functools.cache
def numbers():
    """float32 [256]: the number of each byte."""
    with torch.inference_mode(False):  # what is made in that mode is of no use outside it
        return torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float()

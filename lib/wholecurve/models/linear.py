"""Matrix product of a layer, with rows that do not depend on how many there are."""

import torch
import torch.nn.functional as F


def _whole_rows(rows: int, dtype: torch.dtype) -> int:
    """Rows to compute so that each of them is summed in the same order whatever their number.

    The float32 CPU product sums the rows of an incomplete tile of 4 in another order; the bfloat16 one splits the sum
    of a single row over threads. Both are checked bit for bit in the tests.
    """
    if dtype == torch.float32:
        return -(-rows // 4) * 4
    return max(rows, 2)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, in_features] times weight [out_features, in_features] -> [T, out_features]; row t depends on x[t] alone."""
    rows = x.shape[0]
    whole = _whole_rows(rows, x.dtype) if x.device.type == "cpu" and rows else rows
    if whole != rows:
        return F.linear(F.pad(x, (0, 0, 0, whole - rows)), weight)[:rows]
    return F.linear(x, weight)

"""The lookup of Engram as the laboratory sees it."""

import torch

from wholecurve.kernels.engram_gather import FORMS, engram_gather, spec
from wholecurve.kernels.engram_gather.reference import engram_gather_reference
from wholecurve.kernels.inputs import as_dtype
from wholecurve.kernels.subject import Expected, Subject


def make(inputs, num_tokens, heads, width, distinct_rows, table_rows, groups=None, scale_dtype=None, dtype="bfloat16"):
    """Arguments of `engram_gather` for a case: distinct_rows rows of the table, each asked for at least once."""
    asked = num_tokens * heads
    chosen = inputs.permutation(table_rows)[:distinct_rows]
    rows = chosen[inputs.permutation(asked) % max(1, distinct_rows)].view(num_tokens, heads)
    table = inputs.normal(table_rows, width, dtype=dtype if groups is None else "float8_e4m3fn")
    scales = None
    if groups is not None:
        # powers of two, so that both kinds of scales hold them
        scales = torch.exp2(inputs.integers(-9, 3, table_rows, groups, dtype="float32")).to(as_dtype(scale_dtype))
    return {"table": table, "rows": rows, "scales": scales, "out_dtype": as_dtype(dtype)}


def expected(table, rows, scales=None, out_dtype=None):
    """The rows, rounded once to the dtype of the result."""
    out = engram_gather_reference(table, rows, scales, torch.float32).to(out_dtype)
    return (Expected(out.double(), ulps=0.0),)


def eager(table, rows, scales=None, out_dtype=None):
    """What a model written in plain torch does: an embedding, then the scales."""
    width = table.shape[1]
    if scales is None:
        return torch.nn.functional.embedding(rows, table).flatten(1).to(out_dtype or table.dtype)
    values = table.view(torch.uint8)[rows].view(torch.float8_e4m3fn).float().unflatten(-1, (scales.shape[1], -1))
    factors = scales.view(torch.uint8)[rows].view(scales.dtype) if scales.element_size() == 1 else scales[rows]
    return (values * factors.float()[..., None]).view(rows.shape[0], rows.shape[1] * width).to(out_dtype)


SUBJECT = Subject("engram_gather", engram_gather, FORMS, spec, make, expected, baselines={"eager": eager})

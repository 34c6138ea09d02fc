"""Rows of an n-gram memory, gathered for every token."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.engram_gather.cpu import engram_gather_cpu
from wholecurve.kernels.engram_gather.reference import engram_gather_reference

FORMS = ("reference", "cpu", "triton", "interpret")
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def form_for(device):
    """Name of the form that `engram_gather` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def engram_gather(table, rows, scales=None, out_dtype=None, form=None):
    """The table's rows of each token, one behind the other: [T, heads · width].

    table: [num_rows, width], any row stride, last dimension contiguous: bfloat16, float16, float32, or float8_e4m3fn
    with scales. rows: [T, heads] int64. scales: [num_rows, groups], contiguous, one for each width / groups values of
    a row: float32, or float8_e8m0fnu (powers of two, as DeepSeek-V4.1 stores 8 for 256 values). out_dtype: of the
    result, None for that of the table (bfloat16 for fp8). Returns a new tensor on the device of `rows`.
    On a GPU the Triton form also reads a table in pinned host memory (`tensor.pin_memory()`, or pages registered with
    cudaHostRegister): its address is valid on the GPU, every row then crosses the link. Only pinned ones; the other
    forms copy the rows they need.
    ValueError for shapes, strides, dtypes or places outside this contract. IndexError on a CPU for rows outside the
    table; a GPU reads nothing for them and gives zeros.
    """
    if problem := refusal(table, rows, scales, out_dtype):
        raise ValueError(f"engram_gather: {problem}")
    out_dtype = out_dtype or (table.dtype if scales is None else torch.bfloat16)
    if form in (None, "cpu") and rows.is_cpu and table.is_cpu and table.shape[1]:
        try:  # torch checks every row as well; to read them before that takes as long as a small lookup
            return engram_gather_cpu(table, rows, scales, out_dtype)
        except (IndexError, RuntimeError):
            check_rows(table, rows)
            raise
    if rows.is_cpu:
        check_rows(table, rows)
    chosen = forms.choose_form(form, rows.device, FORMS)
    if chosen in ("reference", "cpu"):
        return engram_gather_reference(table, rows, scales, out_dtype)
    from wholecurve.kernels.engram_gather.kernel import engram_gather_triton

    return engram_gather_triton(table, rows, scales, out_dtype, interpreted=chosen == "interpret")


def refusal(table, rows, scales, out_dtype):
    """What is wrong with these arguments, None if nothing is. A text is only built for the error: that takes time."""
    if table.dim() != 2:
        return f"table must be [rows, width], it is {tuple(table.shape)}"
    if rows.dim() != 2 or rows.dtype != torch.int64:
        return f"rows must be [tokens, heads] int64, they are {tuple(rows.shape)} {rows.dtype}"
    if table.stride(1) != 1 and table.shape[1] > 1:
        return "last dimension of table is strided"
    is_fp8 = table.dtype == torch.float8_e4m3fn
    if not is_fp8 and table.dtype not in FLOATS:
        return f"table must be bfloat16, float16, float32 or float8_e4m3fn, it is {table.dtype}"
    if is_fp8 != (scales is not None):
        return "a table has scales if it is float8_e4m3fn and not otherwise"
    if scales is not None:
        if scales.dim() != 2 or scales.shape[0] != table.shape[0] or table.shape[1] % max(1, scales.shape[1]):
            return f"scales {tuple(scales.shape)} do not divide the rows of a table {tuple(table.shape)}"
        if scales.dtype not in (torch.float32, torch.float8_e8m0fnu):
            return f"scales must be float32 or float8_e8m0fnu, they are {scales.dtype}"
    if out_dtype is not None and out_dtype not in FLOATS:
        return f"out_dtype must be bfloat16, float16 or float32, it is {out_dtype}"
    return None


def check_rows(table, rows):
    """IndexError for rows that the table lacks."""
    if not rows.numel():
        return
    lowest, highest = (bound.item() for bound in rows.aminmax())
    if lowest < 0 or highest >= table.shape[0]:
        raise IndexError(f"engram_gather: rows {lowest} to {highest} of a table of {table.shape[0]}")

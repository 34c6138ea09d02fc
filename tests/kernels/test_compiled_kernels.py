"""The Triton kernels compiled for GPUs that are not there: they build, and their offsets are 64 bits wide."""

import re

import pytest
import torch
import triton
import triton.language as tl

from wholecurve.kernels.decode_attention.kernel import decode_attention_launches
from wholecurve.kernels.launch import Launch
from wholecurve.kernels.rms_norm.kernel import rms_norm_launch
from wholecurve.profiling.compile import compile_launch

META = torch.device("meta")


def rms_norm_with_residual(dtype=torch.bfloat16, device=META, hidden=4096):
    x = torch.zeros(8, hidden, dtype=dtype, device=device)
    return rms_norm_launch(x, x[0], 1e-6, x)[0]


def decode_launches(dtype=torch.bfloat16, device=META, group=4, head_dim=128):
    cache = torch.zeros(64, 16, 2, head_dim, dtype=dtype, device=device)
    q = torch.zeros(4, 2 * group, head_dim, dtype=dtype, device=device)
    table, lengths = (
        torch.zeros(4, 16, dtype=torch.int32, device=device),
        torch.zeros(4, dtype=torch.int32, device=device),
    )
    return decode_attention_launches(q, cache, cache, table, lengths, 0.125)[0]


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_compiles(target, dtype):
    launches = [
        rms_norm_with_residual(dtype),
        *decode_launches(dtype),
        *decode_launches(dtype, group=3, head_dim=80),
    ]
    for launch in launches:
        compiled = compile_launch(launch, target)
        assert f".target {target}" in compiled.asm["ptx"] and compiled.asm["cubin"]


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_compiles_for_older_and_other_devices(target):
    for launch in [rms_norm_with_residual(), *decode_launches()]:
        compiled = compile_launch(launch, target)
        assert compiled.asm["hsaco" if target == "gfx942" else "cubin"]


def test_every_offset_of_a_row_page_or_sequence_is_64_bits():
    for launch in [rms_norm_with_residual(), *decode_launches()]:
        assert offsets_that_may_wrap(compile_launch(launch, "sm_90").asm["ttir"]) == []


@triton.jit
def narrow_kernel(x, stride, BLOCK: tl.constexpr, WIDENED_TOO_LATE: tl.constexpr):
    rows = tl.program_id(0) * stride
    if WIDENED_TOO_LATE:
        rows = rows.to(tl.int64)
    tl.store(x + rows + tl.arange(0, BLOCK), 0.0)


@pytest.mark.parametrize("widened_too_late", [False, True])
def test_wrapping_offsets_are_found(widened_too_late):
    options = {"BLOCK": 16, "WIDENED_TOO_LATE": widened_too_late}
    launch = Launch(narrow_kernel, (1,), (torch.zeros(8, device=META), 7), options)
    assert offsets_that_may_wrap(compile_launch(launch, "sm_90").asm["ttir"])


def offsets_that_may_wrap(ttir):
    """Lines of TTIR where a 32-bit offset could pass 2³¹: rows · width and pages · stride do.

    A pointer may move by i64, or by an i32 range (a lane inside one row, bounded by the tile); and no i64 may
    come from an i32 product.
    """
    definitions = dict(re.findall(r"^\s*(%\w+) = (.+?)(?: loc\(.*)?$", ttir, flags=re.MULTILINE))
    wrapping = []
    for line in definitions.values():
        operand = re.match(r"(?:tt\.addptr %\w+, |arith\.extsi )(%\w+)", line)
        if not operand:
            continue
        source = origin(operand[1], definitions)
        if line.startswith("tt.addptr"):
            wraps = line.rstrip(">").endswith("i32") and not source.startswith("tt.make_range")
        else:
            wraps = source.startswith("arith.muli")
        wrapping += [line] * wraps
    return wrapping


def origin(value, definitions):
    """The line that made a value, behind the operations that only reshape it."""
    line = definitions.get(value, "")
    reshaped = re.match(r"tt\.(?:expand_dims|broadcast|splat) (%\w+)", line)
    return origin(reshaped[1], definitions) if reshaped else line


def test_compiling_uses_the_specialisation_of_the_launch():
    """Meta tensors stand for aligned ones; a width that is not divisible by 16 is another kernel."""
    meta, real = rms_norm_with_residual(), rms_norm_with_residual(device="cpu")
    assert compile_launch(meta, "sm_90").hash == compile_launch(real, "sm_90").hash
    assert compile_launch(rms_norm_with_residual(hidden=4095), "sm_90").hash != compile_launch(meta, "sm_90").hash
    assert "tt.divisibility = 16" in compile_launch(meta, "sm_90").asm["ttir"]


def test_a_misaligned_view_is_another_kernel():
    x = torch.zeros(8 * 4096 + 1, dtype=torch.bfloat16)
    shifted = x[1:].view(8, 4096)
    aligned = x[:-1].view(8, 4096)
    weight = torch.ones(4096, dtype=torch.bfloat16)
    hashes = [compile_launch(rms_norm_launch(view, weight, 1e-6)[0], "sm_90").hash for view in (aligned, shifted)]
    assert hashes[0] != hashes[1]

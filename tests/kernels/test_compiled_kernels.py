"""Static profiles are of the launched kernel: the same specialisation; and 32-bit offsets that may wrap are found."""

import pytest
import torch
import triton
import triton.language as tl
from offsets import offsets_that_may_wrap

from wholecurve.kernels import KERNELS, load_subject
from wholecurve.kernels.launch import Launch
from wholecurve.profiling.compile import compile_launch

RMS_NORM = load_subject("rms_norm")


def rms_norm(device="meta", hidden=4096, shift=0):
    """The RMSNorm launch of 8 rows whose first element lies `shift` elements behind an aligned address."""
    x = torch.zeros(8 * hidden + 8, dtype=torch.bfloat16, device=device)[shift : shift + 8 * hidden].view(8, hidden)
    weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)
    return RMS_NORM.launches({"x": x, "weight": weight, "eps": 1e-6})[0][0]


@triton.jit
def narrow_kernel(x, stride, BLOCK: tl.constexpr, WIDENED_TOO_LATE: tl.constexpr):
    rows = tl.program_id(0) * stride
    if WIDENED_TOO_LATE:
        rows = rows.to(tl.int64)
    tl.store(x + rows + tl.arange(0, BLOCK), 0.0)


@pytest.mark.parametrize("widened_too_late", [False, True])
def test_wrapping_offsets_are_found(widened_too_late):
    options = {"BLOCK": 16, "WIDENED_TOO_LATE": widened_too_late}
    launch = Launch(narrow_kernel, (1,), (torch.zeros(8, device="meta"), 7), options)
    assert offsets_that_may_wrap(compile_launch(launch, "sm_90").asm["ttir"])


def test_meta_tensors_stand_for_aligned_ones():
    assert compile_launch(rms_norm(), "sm_90").hash == compile_launch(rms_norm("cpu"), "sm_90").hash
    assert "tt.divisibility = 16" in compile_launch(rms_norm(), "sm_90").asm["ttir"]


def test_a_width_not_divisible_by_16_is_another_kernel():
    assert compile_launch(rms_norm(hidden=4095), "sm_90").hash != compile_launch(rms_norm(), "sm_90").hash


def test_a_misaligned_view_is_another_kernel():
    assert compile_launch(rms_norm("cpu", shift=1), "sm_90").hash != compile_launch(rms_norm("cpu"), "sm_90").hash


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_static_profile_compiles_the_launch_that_runs(kernel):
    """The same keys for a test case with real tensors and with meta tensors, launch by launch."""
    subject = load_subject(kernel)
    case = max(subject.spec.TESTS, key=lambda case: subject.cost(case).bytes_min)
    configs = subject.spec.CONFIGS.values()
    # a meta tensor stands for one on a GPU, where loads by descriptors are the choice; here both take pointers
    config = next((one for one in configs if one.get("tma") is False), None)
    meta, real = (subject.launches(subject.arguments(case, device), config)[0] for device in ("meta", "cpu"))
    for one, other in zip(meta, real, strict=True):
        assert compile_launch(one, "sm_90").hash == compile_launch(other, "sm_90").hash, one.name

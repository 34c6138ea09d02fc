import pytest
import torch
import triton
import triton.language as tl

from wholecurve.kernels.launch import Launch
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.resources import MULTIPROCESSORS, occupancy, resources


@triton.jit
def product_kernel(a, b, out, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(a + rows * SIZE + columns), tl.load(b + rows * SIZE + columns))
    tl.store(out + rows * SIZE + columns, product)


def product(size=64, num_warps=4):
    a = torch.zeros(size, size, dtype=torch.bfloat16, device="meta")
    return Launch(product_kernel, (1,), (a, a, a.float()), {"SIZE": size, "num_warps": num_warps})


@pytest.mark.parametrize(
    ("target", "family"), [("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("gfx942", "mfma")]
)
def test_each_target_has_its_matrix_instructions(target, family):
    found = resources(compile_launch(product(), target), target)
    assert list(found.matrix) == [family] and found.matrix[family] >= 1
    assert found.registers > 8 and found.spill_bytes == 0 and found.num_warps == 4
    assert found.assembler == "LLVM" if target == "gfx942" else found.assembler.startswith("ptxas ")


def test_spills_are_counted():
    """A tile of 128² float32 numbers does not fit the registers of one warp."""
    found = resources(compile_launch(product(128, num_warps=1), "sm_80"), "sm_80")
    assert found.spill_bytes > 1000 and found.stack_bytes > 0


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "expected"),
    [
        (32, 0, 4, 1.0),  # 65536 / (32 · 32 · 4) = 16 blocks of 4 warps
        (64, 0, 4, 0.5),
        (65, 0, 4, 7 * 4 / 64),  # 72 registers are taken: 65536 / (72 · 128) = 7.1
        (255, 0, 8, 8 / 64),  # one block of 8 warps
        (32, 100 * 1024, 4, 2 * 4 / 64),  # shared memory holds two blocks
        (255, 0, 16, 0.0),  # no block fits
        (16, 0, 1, 0.5),  # 32 blocks at most, of one warp
    ],
)
def test_occupancy_by_hand(registers, shared, warps, expected):
    assert occupancy(registers, shared, warps, MULTIPROCESSORS["sm_90"]) == pytest.approx(expected)


def test_occupancy_is_unknown_without_limits():
    assert occupancy(32, 0, 4, None) is None

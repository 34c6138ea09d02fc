import pytest
import torch
import triton
import triton.language as tl

from wholecurve.kernels.launch import Launch
from wholecurve.profiling.compile import TARGETS, compile_launch, compile_only_driver


@triton.jit
def scale_kernel(x, out, num, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes, mask=lanes < num) * 2, mask=lanes < num)


def scale_launch(num=1024, dtype=torch.float32, **options):
    x = torch.zeros(num, dtype=dtype, device="meta")
    return Launch(scale_kernel, (1,), (x, x, num), {"BLOCK": 1024, "num_warps": 4} | options)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_gives_its_own_code(target):
    compiled = compile_launch(scale_launch(), target)
    assert compiled.metadata.target == TARGETS[target] and compiled.metadata.num_warps == 4
    if TARGETS[target].backend == "cuda":
        assert f".target {target}" in compiled.asm["ptx"]
    else:
        assert target in compiled.asm["amdgcn"]


def test_specialisation_follows_the_arguments():
    """A number that is 1, one divisible by 16 and another one are three kernels; so are other dtypes."""
    launches = [scale_launch(num) for num in (1, 1024, 1023)]
    launches += [scale_launch(dtype=torch.bfloat16), scale_launch(num_warps=8)]
    assert len({compile_launch(launch, "sm_90").hash for launch in launches}) == 5


def test_the_former_driver_comes_back():
    former = triton.runtime.driver._active
    with pytest.raises(RuntimeError, match="inside"), compile_only_driver(TARGETS["sm_90"]):
        assert triton.runtime.driver.active.get_current_target() == TARGETS["sm_90"]
        raise RuntimeError("inside")
    assert triton.runtime.driver._active is former


def test_unknown_target():
    with pytest.raises(KeyError):
        compile_launch(scale_launch(), "sm_1")

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from wholecurve.kernels.launch import Launch
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.interpreter import interpret

PAIR_OPERATIONS = {"add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "maximum": torch.maximum}


@triton.jit
def cast_kernel(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes).to(out.dtype.element_ty))


@triton.jit
def pair_kernel(x, y, out, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    a, b = tl.load(x + lanes), tl.load(y + lanes)
    if OPERATION == "add":
        c = a + b
    elif OPERATION == "subtract":
        c = a - b
    elif OPERATION == "multiply":
        c = a * b
    else:
        c = tl.maximum(a, b)
    tl.store(out + lanes, c)


@triton.jit
def dot_kernel(x, y, out, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None] * BLOCK, tl.arange(0, BLOCK)[None, :]
    product = tl.dot(tl.load(x + rows + columns), tl.load(y + rows + columns), input_precision=PRECISION)
    tl.store(out + rows + columns, product)


@triton.jit
def sum_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, BLOCK)), axis=0))


@triton.jit
def program_kernel(out):
    tl.store(out + tl.program_id(0) * 2 + tl.program_id(1), tl.program_id(0) * 10 + tl.program_id(1))


def spread(seed, size=4096):
    """Numbers over the whole range of fp16, with zeros, ties and infinities among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator) * 2.0 ** torch.randint(-12, 12, (size,), generator=generator)
    values[:5] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    values[5:9] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 2.0**-130, 1e38])  # bf16 ties, a subnormal, near overflow
    return values


def same(a, b):
    return torch.equal(a.float().nan_to_num(nan=-1.25), b.float().nan_to_num(nan=-1.25))


def test_cast_to_bf16_rounds_to_nearest_even():
    x, out = spread(0), torch.empty(4096, dtype=torch.bfloat16)
    interpret(cast_kernel)[(1,)](x, out, BLOCK=4096)
    assert same(out, x.bfloat16())
    back = torch.empty(4096)
    interpret(cast_kernel)[(1,)](out, back, BLOCK=4096)
    assert same(back, out)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)], ids=str)
def test_cast_to_fp8_rounds_and_saturates(dtype, largest):
    x = spread(1)
    out = torch.empty(4096, dtype=dtype)
    interpret(cast_kernel)[(1,)](x, out, BLOCK=4096)
    assert same(out, x.clamp(-largest, largest).to(dtype))
    assert float(out[2].float()) == largest  # +inf


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("operation", PAIR_OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_arithmetic_is_that_of_torch(operation, dtype):
    x, y = spread(2).to(dtype), spread(3).flip(0).to(dtype)
    out = torch.empty(4096, dtype=dtype)
    interpret(pair_kernel)[(1,)](x, y, out, OPERATION=operation, BLOCK=4096)
    assert same(out, PAIR_OPERATIONS[operation](x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_product_of_narrow_numbers_accumulates_in_fp32(dtype):
    torch.manual_seed(0)
    x, y, out = torch.randn(32, 32).to(dtype), torch.randn(32, 32).to(dtype), torch.empty(32, 32)
    interpret(dot_kernel)[(1,)](x, y, out, PRECISION="ieee", BLOCK=32)
    assert torch.allclose(out.double(), x.double() @ y.double(), atol=1e-5)


def test_tf32_drops_thirteen_bits_and_ieee_does_not():
    torch.manual_seed(0)
    x, y, out = torch.randn(32, 32), torch.randn(32, 32), torch.empty(32, 32)
    interpret(dot_kernel)[(1,)](x, y, out, PRECISION="ieee", BLOCK=32)
    assert torch.allclose(out, x @ y, atol=1e-5)
    interpret(dot_kernel)[(1,)](x, y, out, PRECISION="tf32", BLOCK=32)
    cut = [torch.from_numpy((t.numpy().view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)) for t in (x, y)]
    assert torch.allclose(out, cut[0] @ cut[1], atol=1e-5) and not torch.allclose(out, x @ y, atol=1e-5)


def test_grid_and_strided_views():
    out = torch.full((3, 2), -1, dtype=torch.int32)
    interpret(program_kernel)[(3, 2)](out)
    assert out.tolist() == [[0, 1], [10, 11], [20, 21]]


def test_compiling_still_works_after_interpreting_a_device_function():
    """tl.sum is a device function: the stock interpreter leaves triton.language patched after one."""
    before = {name: dict(vars(place)) for name, place in (("tl", tl), ("core", tl.core), ("tensor", tl.tensor))}
    x, out = torch.arange(16.0), torch.zeros(1)
    for _ in range(2):
        interpret(sum_kernel)[(1,)](x, out, BLOCK=16)
        assert float(out) == 120
        assert compile_launch(Launch(sum_kernel, (1,), (x, out), {"BLOCK": 16}), "sm_90").asm["ptx"]
    after = {name: dict(vars(place)) for name, place in (("tl", tl), ("core", tl.core), ("tensor", tl.tensor))}
    for name, attributes in before.items():
        assert {key for key in attributes if after[name].get(key) is not attributes[key]} <= {"__weakref__"}


def test_an_error_in_a_kernel_leaves_nothing_patched():
    call = triton.runtime.jit.JITFunction.__call__
    with pytest.raises(Exception, match="missing"):
        interpret(sum_kernel)[(1,)](torch.zeros(4))
    assert triton.runtime.jit.JITFunction.__call__ is call
    test_compiling_still_works_after_interpreting_a_device_function()

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from wholecurve.profiling import numerics
from wholecurve.profiling.counting import count
from wholecurve.profiling.interpreter import interpret


@triton.jit
def copy_kernel(x, out, num, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes, mask=lanes < num), mask=lanes < num)


@triton.jit
def reread_kernel(x, weight, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    scaled = tl.load(x + tl.program_id(0) * BLOCK + lanes) * tl.load(weight + lanes)
    tl.atomic_add(out, tl.sum(tl.exp(scaled), axis=0))


@triton.jit
def product_kernel(x, y, out, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None] * BLOCK, tl.arange(0, BLOCK)[None, :]
    tl.store(out + rows + columns, tl.dot(tl.load(x + rows + columns), tl.load(y + rows + columns)))


def test_masked_lanes_cost_nothing():
    x, out = torch.arange(20, dtype=torch.float16), torch.zeros(20, dtype=torch.float16)
    with count() as counts:
        interpret(copy_kernel)[(2,)](x, out, 20, BLOCK=16)
    assert torch.equal(x, out)
    assert (counts.programs, counts.load_bytes, counts.store_bytes) == (2, 40, 40)
    assert (counts.unique_load_bytes, counts.unique_store_bytes, counts.masked_off_load_lanes) == (40, 40, 12)
    assert counts.elementwise == counts.dot_flops == counts.transcendental == counts.atomic_bytes == 0


def test_a_reread_counts_again_but_not_as_unique():
    x, weight, out = torch.ones(3, 16), torch.zeros(16), torch.zeros(1)
    with count() as counts:
        interpret(reread_kernel)[(3,)](x, weight, out, BLOCK=16)
    assert float(out) == 48
    assert counts.load_bytes == 2 * 3 * 16 * 4 and counts.unique_load_bytes == 3 * 16 * 4 + 16 * 4
    assert counts.atomic_bytes == 3 * 4
    assert counts.elementwise == 3 * (16 + 16) and counts.transcendental == 3 * 16  # products and sums; exponentials


def test_a_product_costs_two_flops_per_multiply_add():
    x = torch.ones(32, 32)
    with count() as counts:
        interpret(product_kernel)[(1,)](x, x, torch.zeros(32, 32), BLOCK=32)
    assert (counts.dots, counts.dot_flops) == (1, 2 * 32**3)


def test_nothing_is_counted_outside():
    x, out = torch.zeros(16), torch.zeros(16)
    with count() as counts:
        pass
    interpret(copy_kernel)[(1,)](x, out, 16, BLOCK=16)
    assert counts.programs == counts.load_bytes == counts.unique_load_bytes == 0


@triton.jit
def multiply_kernel(x, y, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes) * tl.load(y + lanes))


def test_counting_keeps_the_faithful_arithmetic(monkeypatch):
    """Even when it is the counting that starts first, in an interpreter as triton ships it."""
    for name, method in numerics.stock.items():
        monkeypatch.setattr(InterpreterBuilder, name, method)
    numerics.install.cache_clear()
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    with count() as counts:
        inside = torch.zeros(64, dtype=torch.bfloat16)
        interpret(multiply_kernel)[(1,)](x, y, inside, BLOCK=64)
    after = torch.zeros(64, dtype=torch.bfloat16)
    interpret(multiply_kernel)[(1,)](x, y, after, BLOCK=64)
    numerics.install.cache_clear()  # monkeypatch puts the former methods back
    assert torch.equal(inside, x * y) and torch.equal(after, x * y)
    assert counts.elementwise == 64

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from wholecurve.profiling.interpreter import interpret
from wholecurve.profiling.sanitizer import sanitize


@triton.jit
def copy_kernel(x, out, num, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes, mask=lanes < num, other=0.0), mask=lanes < num)


@triton.jit
def add_kernel(out, offset):
    tl.atomic_add(out + offset, 1.0)


def whole_buffer():
    """A tensor of 20 inside a buffer of 40, so that a stray access hits memory of the test."""
    buffer = torch.zeros(40)
    return buffer, buffer[10:30]


def test_a_right_kernel_passes():
    (_, x), (_, out) = whole_buffer(), whole_buffer()
    with sanitize(x, out):
        interpret(copy_kernel)[(2,)](x, out, 20, BLOCK=16)


@pytest.mark.parametrize(("num", "what"), [(21, "load: 1 lanes"), (24, "load: 4 lanes")])
def test_a_load_past_the_end_is_found(num, what):
    (_, x), (buffer, out) = whole_buffer(), whole_buffer()
    with (
        pytest.raises(InterpreterError, match=f"{what} outside every tensor in program .1, 0, 0."),
        sanitize(x, buffer),
    ):
        interpret(copy_kernel)[(2,)](x, out, num, BLOCK=16)


def test_a_store_past_the_end_is_found():
    (buffer, x), (_, out) = whole_buffer(), whole_buffer()
    with (
        pytest.raises(InterpreterError, match=r"store: 1 lanes .* \+0 bytes from the end"),
        sanitize(buffer, out),
    ):
        interpret(copy_kernel)[(2,)](x, out, 21, BLOCK=16)


@pytest.mark.parametrize(("offset", "found"), [(-1, True), (0, False), (19, False), (20, True)])
def test_an_atomic_outside_is_found(offset, found):
    _, out = whole_buffer()
    with sanitize(out):
        if found:
            with pytest.raises(InterpreterError, match="create_atomic_rmw"):
                interpret(add_kernel)[(1,)](out, offset)
        else:
            interpret(add_kernel)[(1,)](out, offset)


def test_the_check_ends_with_the_context():
    (_, x), (_, out) = whole_buffer(), whole_buffer()
    with sanitize(torch.zeros(1)):
        pass
    interpret(copy_kernel)[(2,)](x, out, 20, BLOCK=16)

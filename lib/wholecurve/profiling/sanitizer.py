"""Out-of-bounds check for interpreted kernels: the stock interpreter dereferences any address it is given."""

import contextlib

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder

# builder method: (position of the pointers, position of the mask) in its arguments
MEMORY_METHODS = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}


class OutOfBounds(Exception):
    """A lane of an interpreted kernel touched memory outside every allowed tensor."""


@contextlib.contextmanager
def sanitize(*tensors):
    """Inside the context, every active lane of a load, store or atomic must lie within one of `tensors`.

    tensors: the CPU tensors that the launch may touch; the gaps of a strided tensor count as inside. Raises
    OutOfBounds, which the interpreter wraps, so catch `triton.runtime.errors.InterpreterError` around the
    launch.
    """
    spans = sorted(byte_span(tensor) for tensor in tensors if tensor.numel())
    starts, ends = np.array(spans, dtype=np.uint64).reshape(-1, 2).T
    saved = {name: getattr(InterpreterBuilder, name) for name in MEMORY_METHODS}

    def checked(name):
        pointers_at, mask_at = MEMORY_METHODS[name]

        def method(self, *arguments, **keywords):
            check(name, arguments[pointers_at], arguments[mask_at], starts, ends, self.grid_idx)
            return saved[name](self, *arguments, **keywords)

        return method

    for name in MEMORY_METHODS:
        setattr(InterpreterBuilder, name, checked(name))
    try:
        yield
    finally:
        for name, method in saved.items():
            setattr(InterpreterBuilder, name, method)


def byte_span(tensor):
    """(first address, address after the last) of a tensor's elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def check(name, pointers, mask, starts, ends, program):
    """Raise OutOfBounds when an active lane is not wholly inside one span."""
    item_bytes = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
    active = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
    owner = np.searchsorted(starts, active, "right") - 1
    outside = (owner < 0) | (active + item_bytes > ends[np.maximum(owner, 0)])
    if outside.any():
        first = int(active[outside][0]) - int(ends[max(int(owner[outside][0]), 0)])
        raise OutOfBounds(
            f"{name}: {int(outside.sum())} lanes outside every tensor in program {program}, the first one "
            f"{first:+d} bytes from the end of the nearest tensor below"
        )

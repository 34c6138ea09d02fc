"""Memory that shows who wrote and who read what it should not: poison inside, guard bands around."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GUARD = 64  # elements on both sides: keeps 16-byte alignment in every dtype
INTEGER_POISON = {torch.uint8: 0xA5, torch.int8: -0x5B, torch.bool: True}

_EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


def poison_of(dtype):
    """What unwritten memory of a dtype holds here: NaN, and for integers a number that no index may be."""
    if dtype.is_floating_point:
        return float("nan")
    return INTEGER_POISON.get(dtype, -7777)


class Guarded:
    """Copies of tensors in poisoned buffers; `changed()` tells whether anything in or around them was written."""

    def __init__(self):
        self.buffers = {}

    def __call__(self, tensor, name="tensor"):
        """A copy with the strides of `tensor`; its gaps are poisoned. An overlapping view comes back as it is."""
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
            return tensor
        span = 0
        if tensor.numel():
            span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        buffer = guarded_buffer(span, tensor.dtype, tensor.device)
        inner = buffer.as_strided(tensor.shape, tensor.stride(), GUARD)
        inner.copy_(tensor)
        self.buffers[name] = (buffer, inner, bits(buffer).clone())
        return inner

    def changed(self, writable=()):
        """Names of the tensors that were written, or around which something was; inside a writable one is fine."""
        found = []
        for name, (buffer, inner, before) in self.buffers.items():
            if name in writable:
                outside = torch.ones(buffer.shape, dtype=torch.bool, device=buffer.device)
                outside.as_strided(inner.shape, inner.stride(), GUARD).fill_(False)
                outside = outside.repeat_interleave(buffer.element_size())  # of bytes
                same = torch.equal(bits(buffer)[outside], before[outside])
            else:
                same = torch.equal(bits(buffer), before)
            if not same:
                found.append(name)
        return found


class PoisonedEmpty(TorchDispatchMode):
    """Inside the context, what torch allocates without filling holds poison and lies between guard bands."""

    def __init__(self):
        super().__init__()
        self.buffers = []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        made = operation(*arguments, **(keywords or {}))
        if operation not in _EMPTY or made.device.type == "meta" or not made.is_contiguous():
            return made
        buffer = guarded_buffer(made.numel(), made.dtype, made.device)
        self.buffers.append(buffer)
        return buffer[GUARD : GUARD + made.numel()].view(made.shape)

    def overrun(self):
        """Whether anything was written outside a tensor that was allocated in the context."""
        clean = torch.full((GUARD,), 0, dtype=torch.uint8)
        for buffer in self.buffers:
            clean = bits(torch.full((GUARD,), poison_of(buffer.dtype), dtype=buffer.dtype, device=buffer.device))
            if not torch.equal(bits(buffer[:GUARD]), clean) or not torch.equal(bits(buffer[-GUARD:]), clean):
                return True
        return False


def guarded_buffer(elements, dtype, device):
    """A poisoned buffer with room for `elements` between two guard bands."""
    # filled in a wider dtype: fill_ does not take fp8
    poison = torch.full((elements + 2 * GUARD,), poison_of(dtype), dtype=wide(dtype), device=device)
    return poison.to(dtype)


def wide(dtype):
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


def bits(tensor):
    """The bytes of a contiguous tensor: NaN equals itself in them."""
    return tensor.view(torch.uint8)

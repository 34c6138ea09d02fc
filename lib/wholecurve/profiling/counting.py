"""Exact counts of what an interpreted kernel asks of memory and of the arithmetic units."""

import collections
import contextlib
import dataclasses

import numpy as np
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

from wholecurve.profiling import numerics

TRANSCENDENTAL = {np.exp, np.exp2, np.log, np.log2, np.sin, np.cos, np.sqrt}


@dataclasses.dataclass
class Counts:
    """Totals over all programs of the launches inside one `count()`.

    load_bytes and store_bytes count active lanes, so a masked-off lane costs nothing and a re-read costs
    again; unique_load_bytes and unique_store_bytes count each address once. dot_flops is 2 per multiply-add
    of the whole tile, padding included. elementwise counts floating-point lanes (padding included; a
    reduction of n costs n).
    """

    programs: int = 0
    load_bytes: int = 0
    store_bytes: int = 0
    unique_load_bytes: int = 0
    unique_store_bytes: int = 0
    masked_off_load_lanes: int = 0
    atomic_bytes: int = 0
    dots: int = 0
    dot_flops: int = 0
    elementwise: int = 0
    transcendental: int = 0


@contextlib.contextmanager
def count():
    """Yield the Counts of every interpreted launch inside the context; unique bytes are there at its end."""
    numerics.install()  # before the hooks go on, or it would replace them
    counts = Counts()
    addresses = {"unique_load_bytes": [], "unique_store_bytes": []}
    hooks = builder_hooks(counts, addresses)
    saved = {name: getattr(InterpreterBuilder, name) for name in hooks}
    saved_reduce = interpreter.ReduceOps.apply_impl

    def hooked(name):
        def method(self, *arguments, **keywords):
            hooks[name](*arguments)
            return saved[name](self, *arguments, **keywords)

        return method

    def reduce(self, operands):
        counts.elementwise += operands[0].handle.data.size * operands[0].dtype.is_floating()
        return saved_reduce(self, operands)

    for name in hooks:
        setattr(InterpreterBuilder, name, hooked(name))
    interpreter.ReduceOps.apply_impl = reduce  # reductions do not pass through the builder
    try:
        yield counts
    finally:
        for name, method in saved.items():
            setattr(InterpreterBuilder, name, method)
        interpreter.ReduceOps.apply_impl = saved_reduce
    for field, seen in addresses.items():
        setattr(counts, field, unique_bytes(seen))


def builder_hooks(counts, addresses):
    """What to count before each builder method runs, by the method's name."""

    def load(pointers, mask, *_):
        active = active_addresses(pointers, mask)
        counts.load_bytes += active.size * item_bytes(pointers)
        counts.masked_off_load_lanes += pointers.data.size - active.size
        addresses["unique_load_bytes"].append((item_bytes(pointers), np.unique(active)))

    def store(pointers, value, mask, *_):
        active = active_addresses(pointers, mask)
        counts.store_bytes += active.size * item_bytes(pointers)
        addresses["unique_store_bytes"].append((item_bytes(pointers), np.unique(active)))

    def atomic(operation, pointers, value, mask, *_):
        counts.atomic_bytes += active_addresses(pointers, mask).size * item_bytes(pointers)

    def dot(a, b, accumulator, *_):
        counts.dots += 1
        counts.dot_flops += 2 * accumulator.data.size * a.data.shape[-1]

    def binary(left, right, operation):
        if left.dtype.scalar.is_floating():
            counts.elementwise += max(left.data.size, right.data.size)

    def unary(argument, operation):
        if operation in TRANSCENDENTAL:
            counts.transcendental += argument.data.size
        elif argument.dtype.scalar.is_floating():
            counts.elementwise += argument.data.size

    def transcendental(argument):
        counts.transcendental += argument.data.size

    def program(*_):
        counts.programs += 1

    return {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": atomic,
        "create_dot": dot,
        "binary_op": binary,
        "unary_op": unary,
        "create_rsqrt": transcendental,
        "create_erf": transcendental,
        "set_grid_idx": program,
    }


def item_bytes(pointers):
    """Bytes of the element that a pointer handle points to."""
    return max(1, pointers.get_element_ty().primitive_bitwidth // 8)


def active_addresses(pointers, mask):
    """The addresses of the lanes that the mask leaves on."""
    return pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]


def unique_bytes(seen):
    """Bytes of the distinct addresses in a list of (element bytes, addresses)."""
    by_size = collections.defaultdict(list)
    for size, active in seen:
        by_size[size].append(active)
    return sum(size * len(np.unique(np.concatenate(parts))) for size, parts in by_size.items())

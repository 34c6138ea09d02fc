"""Running one @triton.jit kernel in Triton's NumPy interpreter, kernel by kernel and next to compilation.

`interpret(kernel)[grid](*arguments)` needs no GPU, no driver and no TRITON_INTERPRET variable (which has to
be set before the kernel's module is imported and then stops every compilation of the process).
"""

import contextlib
import functools

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from wholecurve.profiling import numerics

PATCHED_BY_TRITON = [tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype] + [
    getattr(tl.core, name) for name in ("condition", "tensor_descriptor_base") if hasattr(tl.core, name)
]


class Interpreted:
    """A kernel that runs in the interpreter: index it with a grid and call it like the compiled one."""

    def __init__(self, kernel):
        while not isinstance(kernel, JITFunction):
            kernel = kernel.fn  # autotune and heuristics wrap the kernel
        self.kernel = interpreted_function(kernel.fn)

    def __getitem__(self, grid):
        def launch(*arguments, **keywords):
            with launch_scope():
                self.kernel[grid](*arguments, **keywords)

        return launch


def interpret(kernel):
    """The kernel as something to launch in the interpreter, with right bf16, fp8 and tf32 numbers.

    kernel: a @triton.jit function. Programs run one after the other in grid order, so races do not show.
    Addresses are dereferenced unchecked: use `sanitizer.sanitize` around a launch that is not trusted yet.
    """
    numerics.install()
    return Interpreted(kernel)


@functools.cache
def interpreted_function(function):
    """The interpreter's form of a Python function, rewritten once."""
    return InterpretedFunction(function)


@contextlib.contextmanager
def launch_scope():
    """Route device functions to the interpreter during a launch, then put triton.language back as it was.

    Device functions (`tl.sum`, `tl.cdiv`, helpers) are JITFunctions, which refuse to be called outside a
    compilation. The stock interpreter patches triton.language again for each of their calls and never
    restores it, after which every later compilation of the process fails.
    """
    saved = [(place, dict(vars(place))) for place in PATCHED_BY_TRITON]
    stock_call = JITFunction.__call__
    patched = set()

    def call_device_function(self, *arguments, **keywords):
        languages = frozenset(id(value) for value in self.fn.__globals__.values() if value is tl or value is tl.core)
        if not languages <= patched:
            interpreter._patch_lang(self.fn)
            patched.update(languages)
        return interpreted_function(self.fn).rewrite()(*arguments, **keywords)

    JITFunction.__call__ = call_device_function
    try:
        yield
    finally:
        JITFunction.__call__ = stock_call
        for place, attributes in saved:
            restore(place, attributes)


def restore(place, attributes):
    """Give a module or class back the attributes it had."""
    for name, value in list(vars(place).items()):
        if name not in attributes:
            delattr(place, name)
        elif attributes[name] is not value and not name.startswith("__weakref"):
            setattr(place, name, attributes[name])

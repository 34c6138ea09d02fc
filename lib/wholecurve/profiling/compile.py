"""Compiling a Triton kernel for a GPU that is not there, specialised as its launch would be."""

import contextlib

import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


class CompileOnlyDriver:
    """Enough of a driver for JITFunction.warmup: it names a target and a device, and cannot launch."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        # the key of triton's in-memory cache of kernels: it must differ between targets
        return f"compile-only:{self.target.backend}:{self.target.arch}"

    def get_current_stream(self, device=None):
        return 0


@contextlib.contextmanager
def compile_only_driver(target):
    """Make a compile-only driver the active one, then give the former driver back."""
    driver = triton.runtime.driver
    former = driver._active
    driver.set_active(CompileOnlyDriver(target))
    try:
        yield
    finally:
        driver._active = former


def compile_launch(launch, target):
    """The compiled kernel (`.asm`, `.metadata`, `.hash`) that this launch would run on `target`.

    launch: a `wholecurve.kernels.launch.Launch`, whose tensors may be on any device, "meta" too. Its
    arguments matter because Triton specialises on addresses and integers divisible by 16 and on integers
    equal to 1; a meta tensor counts as aligned. target: a name from TARGETS. Results are cached on disk in
    TRITON_CACHE_DIR.
    """
    with compile_only_driver(TARGETS[target]):
        return launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)

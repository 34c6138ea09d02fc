"""The compiled library as Python calls it: one packed record per call, since each argument of ctypes costs 50 ns."""

import ctypes
import functools
import os
import struct

import torch

from wholecurve.kernels.native.build import built

# numbers of elementwise.c
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
NO_WEIGHT = 3
STYLES = {"llama": 0, "gemma": 1}
LAYOUTS = {"half": 0, "interleaved": 1}
MAX_PAIRS, MAX_HEAD = 512, 1024
# the records of elementwise.c: P pointer, q int64, d double
RMS_NORM = struct.Struct("5P8qd").pack
ROPE = struct.Struct("6P19qd").pack
GATED_ACTIVATION = struct.Struct("2P6q2d").pack
# elements that a thread should have at least: starting one costs as much as some thousand
ELEMENTS_PER_THREAD = 32768
TWO_THREADS = 2 * ELEMENTS_PER_THREAD
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@functools.cache
def load():
    """The library with its functions declared; None, for the rest of the process, where it cannot be had.

    WHOLECURVE_NATIVE=0 turns it off. Compiles on the first use in a cache folder, which takes some seconds.
    """
    if os.environ.get("WHOLECURVE_NATIVE") == "0":
        return None
    path = built()
    return None if path is None else open_library(path)


def open_library(path):
    """A compiled library with its functions declared; None if it is none."""
    try:
        library = ctypes.CDLL(str(path))
        functions = [library.native_rms_norm, library.native_gated_activation, library.native_rope]
        dtypes = library.native_dtypes()
    except (OSError, AttributeError):
        return None
    for function in functions:
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int
    library.native_rope.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.codes = {dtype: code for dtype, code in DTYPES.items() if dtypes >> code & 1}
    use_threads_of_torch(library)
    return library


def use_threads_of_torch(library):
    """Hand over the OpenMP runtime that torch has loaded; where it shows none, one thread does everything."""
    process = ctypes.CDLL(None)
    try:
        addresses = [ctypes.cast(getattr(process, name), ctypes.c_void_p) for name in OPENMP]
    except AttributeError:
        return
    library.native_threads.argtypes, library.native_threads.restype = [ctypes.c_void_p] * 3, None
    library.native_threads(*addresses)


def threads_for(elements):
    """Threads that a call over so many elements should have."""
    if elements < TWO_THREADS:
        return 1
    return min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD)


def plain(x):
    """Whether x is a tensor with memory and without a gradient to keep: what C can read and write beside autograd."""
    return type(x) is torch.Tensor and not x.requires_grad

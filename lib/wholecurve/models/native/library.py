"""The C++ step as Python finds it: compiled on first use, one library per element type."""

import ctypes
import functools
import os
from pathlib import Path

import torch

from wholecurve.kernels.native.build import Program, built

SOURCES = Path(__file__).parent
ELEMENTS = {torch.bfloat16: "BFloat16", torch.float32: "Float32"}
COLUMNS, LANES = 32, 16  # of tiles.hpp and lanes.hpp


def group_of(dtype: torch.dtype) -> int:
    """Elements that lie side by side along the summed axis, GROUP of lanes.hpp."""
    return 2 if dtype == torch.bfloat16 else 1


def program(dtype: torch.dtype, folder: Path = SOURCES) -> Program:
    """What to compile for weights of `dtype`. folder: of the sources."""
    return Program(folder / "llama.cpp", tuple(sorted(folder.glob("*.hpp"))), (f"ELEMENT={ELEMENTS[dtype]}",))


@functools.cache
def load(dtype: torch.dtype):
    """The library for weights of `dtype` with its functions declared.

    None where it cannot be had: another dtype, no C++ compiler, or WHOLECURVE_NATIVE=0. Compiles for some seconds on
    the first use in a cache folder.
    """
    if os.environ.get("WHOLECURVE_NATIVE") == "0" or dtype not in ELEMENTS:
        return None
    path = built(program(dtype))
    return None if path is None else open_library(path)


def open_library(path: Path):
    """A compiled library with its functions declared; None if it is none."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    try:
        library = ctypes.CDLL(str(path))
        library.pack.argtypes, library.pack.restype = [pointer, integer, pointer, integer, integer, pointer], None
        library.create.argtypes, library.create.restype = [pointer, ctypes.c_double, pointer], pointer
        library.destroy.argtypes, library.destroy.restype = [pointer], None
        library.step.argtypes, library.step.restype = [pointer, pointer, pointer], ctypes.c_bool
    except (OSError, AttributeError):
        return None
    return library

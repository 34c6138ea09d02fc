"""The native form: kernels of a decode step in C, compiled once per machine where it has a C compiler.

At decode sizes a torch call costs more than its arithmetic, so that a composition of torch calls cannot be much faster
than another one. `elementwise.c` is the source, `build.py` compiles it into the user's cache, `library.py` loads it.
Nobody needs a compiler: without one, or with WHOLECURVE_NATIVE=0, there is no native form and "cpu" runs.
"""

from wholecurve.kernels.native.library import load

__all__ = ["load"]

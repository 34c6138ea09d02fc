"""Llama-family models on the CPU with one C++ call per step.

`llama.py` packs the weights and is the model; `library.py` compiles and loads. In C++: `llama.cpp` (the C face),
`step.hpp` (a forward pass over threads), `layers.hpp` and `attention.hpp` (the parts of a layer), `model.hpp` (what
they work on), `work.hpp` and `threads.hpp` (dealing it out), `tiles.hpp` and `lanes.hpp` (registers, numbers). Without
a C++ compiler `unsupported` says so and the plain torch model runs instead.
"""

from wholecurve.models.native.llama import NativeLlama, build_native_llama, unsupported

__all__ = ["NativeLlama", "build_native_llama", "unsupported"]

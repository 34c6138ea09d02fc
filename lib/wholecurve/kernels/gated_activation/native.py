"""The gated activation in C: see `wholecurve.kernels.native`."""

import math

from torch import Tensor

from wholecurve.kernels.gated_activation.cpu import gated_activation_cpu
from wholecurve.kernels.native.library import GATED_ACTIVATION, TWO_THREADS, load, threads_for

SILU, SILU_ALPHA, GELU_TANH = range(3)  # of elementwise.c
NO_LIMIT = math.inf


def gated_activation_native(gate_up, activation="silu", limit=None, alpha=None):
    """See `wholecurve.kernels.gated_activation.gated_activation`. What C does not take goes to the CPU form: no
    library, float64, the exact gelu, a strided last dimension, gradients.
    """
    library = load()
    code = None if library is None else library.codes.get(gate_up.dtype)
    if code is None or activation == "gelu" or type(gate_up) is not Tensor or gate_up.requires_grad:
        return gated_activation_cpu(gate_up, activation, limit, alpha)
    tokens, stride = gate_up.shape
    width = stride // 2
    if not gate_up.is_contiguous():
        stride, step = gate_up.stride()
        if step != 1:
            return gated_activation_cpu(gate_up, activation, limit, alpha)
    kind = GELU_TANH if activation != "silu" else SILU if alpha is None else SILU_ALPHA
    out = gate_up.new_empty(tokens, width)
    elements = tokens * width
    threads = 1 if elements < TWO_THREADS else threads_for(elements)
    given, wanted, limit = gate_up.data_ptr(), out.data_ptr(), NO_LIMIT if limit is None else limit
    library.native_gated_activation(
        GATED_ACTIVATION(given, wanted, tokens, width, stride, code, kind, threads, limit, alpha or 0.0)
    )
    return out

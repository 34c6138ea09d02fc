"""Norm of q and k heads and their rotation in one pass of C: see `wholecurve.kernels.native`."""

from wholecurve.kernels.native.library import STYLES, load
from wholecurve.kernels.qk_norm_rope.cpu import qk_norm_rope_cpu
from wholecurve.kernels.rms_norm.native import weight_code_of
from wholecurve.kernels.rope.native import takes, turned


def qk_norm_rope_native(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0):
    """See `wholecurve.kernels.qk_norm_rope.qk_norm_rope`: the bits of the native norm and rotation in turn. What either
    of them does not take goes to the CPU form.
    """
    library = load()
    if library is not None and takes(library, q, cos, sin) and takes(library, k, cos, sin):
        weight_codes = [weight_code_of(library, weight) for weight in (q_weight, k_weight)]
        if None not in weight_codes:
            return tuple(
                turned(
                    *(library, x, positions, cos, sin, layout, False, offset),
                    norm=(0 if weight is None else weight.data_ptr(), code, STYLES[style], 1),
                    eps=eps,
                )
                for x, weight, code in zip((q, k), (q_weight, k_weight), weight_codes)
            )
    return qk_norm_rope_cpu(q, k, q_weight, k_weight, eps, positions, cos, sin, style, layout, offset)

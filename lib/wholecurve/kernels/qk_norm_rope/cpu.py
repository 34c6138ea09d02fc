"""Norm of q and k heads, then rotation, from the two CPU forms."""

from wholecurve.kernels.rms_norm.cpu import rms_norm_cpu
from wholecurve.kernels.rope.cpu import rope_cpu


def qk_norm_rope_cpu(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0):
    """See `wholecurve.kernels.qk_norm_rope.qk_norm_rope`."""
    return tuple(
        rope_cpu(rms_norm_cpu(x, weight, eps, style=style), positions, cos, sin, layout, offset=offset)
        for x, weight in ((q, q_weight), (k, k_weight))
    )

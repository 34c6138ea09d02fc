"""Norm of q and k heads, then rotation, the definition.

Henry et al. 2020, "Query-Key Normalization for Transformers", https://arxiv.org/abs/2010.04245, in the RMSNorm form of
Qwen3, https://arxiv.org/abs/2505.09388, section 2: each head is normalised over its own channels before the rotation.
"""

from wholecurve.kernels.rms_norm.reference import rms_norm_reference
from wholecurve.kernels.rope.reference import rope_reference


def qk_norm_rope_reference(q, k, q_weight, k_weight, eps, positions, cos, sin, style="llama", layout="half", offset=0):
    """See `wholecurve.kernels.qk_norm_rope.qk_norm_rope`."""
    return tuple(
        rope_reference(rms_norm_reference(x, weight, eps, style=style), positions, cos, sin, layout, offset=offset)
        for x, weight in ((q, q_weight), (k, k_weight))
    )

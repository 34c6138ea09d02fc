"""The gated activation in Triton."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.forms import require
from wholecurve.kernels.gated_activation.spec import tile
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def gated_activation_kernel(
    gate_up,  # [T, 2 · intermediate], last dimension contiguous
    out,  # [T, intermediate], contiguous
    intermediate,
    gate_up_stride,
    limit,
    alpha,
    ACTIVATION: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles BLOCK elements of one row."""
    # 64 bits before the products: tokens · width passes 2³¹ in long prefills
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    inside = lanes < intermediate - start
    source = row * gate_up_stride + start
    gate = tl.load(gate_up + source + lanes, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (source + intermediate) + lanes, mask=inside, other=0.0).to(tl.float32)
    if HAS_LIMIT:  # comparisons, since a minimum would turn NaN into the limit
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if ACTIVATION == "gelu":
        activated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # ½ (1 + tanh z) = sigmoid(2 z), so all the others are gate · sigmoid(exponent)
        exponent = gate
        if ACTIVATION == "gelu_tanh":
            exponent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 √(2/π)
        if HAS_ALPHA:
            exponent = alpha * gate
            up += 1.0
        activated = gate / (1.0 + tl.exp(-exponent))
    activated = activated.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + (row * intermediate + start) + lanes, (activated * up).to(out.dtype.element_ty), mask=inside)


def launches(gate_up, activation="silu", limit=None, alpha=None, config=None):
    """([launch], out) for arguments as in `wholecurve.kernels.gated_activation.gated_activation`."""
    num_tokens, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    dtype = gate_up.dtype
    require(dtype in DTYPES, f"gated_activation: the Triton form takes {', '.join(map(str, DTYPES))}, not {dtype}")
    require(gate_up.stride(1) == 1 or intermediate == 0, "gated_activation: last dimension of gate_up is strided")
    out = torch.empty((num_tokens, intermediate), dtype=dtype, device=gate_up.device)
    block, num_warps = tile(intermediate, **(config or {}))
    launch = Launch(
        gated_activation_kernel,
        (num_tokens, triton.cdiv(intermediate, block)),
        (
            *(gate_up, out, intermediate, gate_up.stride(0)),
            *(0.0 if limit is None else float(torch.tensor(limit, dtype=dtype)), float(alpha or 0.0)),
        ),
        dict(
            ACTIVATION=activation,
            HAS_LIMIT=limit is not None,
            HAS_ALPHA=alpha is not None,
            BLOCK=block,
            num_warps=num_warps,
        ),
    )
    return [launch], out


def gated_activation_triton(gate_up, activation, limit, alpha, interpreted):
    """See `wholecurve.kernels.gated_activation.gated_activation`; interpreted: not on the GPU."""
    started, out = launches(gate_up, activation, limit, alpha)
    run_all(started, interpreted)
    return out

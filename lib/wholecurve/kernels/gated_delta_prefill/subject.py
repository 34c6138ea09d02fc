"""The gated delta rule over whole sequences as the laboratory sees it."""

import itertools
import math

import torch
import torch.nn.functional as F

from wholecurve.kernels.gated_delta_decode.reference import widened
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states
from wholecurve.kernels.gated_delta_decode.subject import SUM_ULPS, slot_numbers, traced_recurrence
from wholecurve.kernels.gated_delta_prefill import FORMS, gated_delta_prefill, spec
from wholecurve.kernels.subject import Expected, Subject

# Rounding of factors to the dtype of q: w, u, the state, the new values and the weights, each once or twice. One
# rounding is 0.2 units in quadrature; 6 of them add up to 0.5, and the largest of millions of elements is 6 times that.
FACTOR_ULPS = 3.0


def make(
    inputs,
    lengths,
    num_heads,
    num_value_heads,
    key_dim,
    value_dim,
    fresh=0,
    idle=0,
    l2norm=True,
    dtype="bfloat16",
):
    """Arguments of `gated_delta_prefill` for a case; slots that nobody may read hold NaN.

    Decays are weak (0.95 to 1 a token), so that what a state held stays visible.
    """
    tokens, (slots, num_slots) = sum(lengths), slot_numbers(len(lengths), idle)
    state = inputs.full(num_slots, num_value_heads, key_dim, value_dim, value=math.nan, dtype="float32")
    used = [slot for slot in slots[fresh:] if slot >= 0]
    state[inputs.fixed(used, "int64")] = inputs.normal(len(used), *state.shape[1:], dtype="float32")
    # without a norm inside, keys of length 1 and more would let the state grow from token to token
    spread = 1.0 if l2norm else 0.5 / math.sqrt(key_dim)
    bounds = [sum(lengths[:sequence]) for sequence in range(len(lengths) + 1)]
    return {
        "q": inputs.normal(tokens, num_heads, key_dim, dtype=dtype, scale=spread),
        "k": inputs.normal(tokens, num_heads, key_dim, dtype=dtype, scale=spread),
        "v": inputs.normal(tokens, num_value_heads, value_dim, dtype=dtype),
        "g": inputs.uniform(tokens, num_value_heads, low=-0.05, high=0.0),
        "beta": inputs.uniform(tokens, num_value_heads, dtype=dtype),
        "cu_seqlens": inputs.fixed(bounds, "int32"),
        "state": state,
        "slots": inputs.fixed(slots, "int32"),
        "scale": 1 / math.sqrt(key_dim),
        "l2norm": l2norm,
        "has_initial_state": None if not fresh else inputs.fixed([b >= fresh for b in range(len(lengths))], "bool"),
    }


def expected(q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm=False, has_initial_state=None):
    """The recurrence in float64, token by token; errors as `traced_recurrence` describes them."""
    out, out_scale = torch.empty_like(v, dtype=torch.float64), torch.empty_like(v, dtype=torch.float64)
    reached, state_scale = state.double(), torch.zeros_like(state, dtype=torch.float64)
    started = initial_states(reached, slots, has_initial_state)
    wide, bounds = widened(*(tensor.double() for tensor in (q, k, v, g, beta)), scale, l2norm), cu_seqlens.tolist()
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        last = None
        for token, last in enumerate(traced_recurrence(*(rows[start:end] for rows in wide), started[sequence])):
            out[start + token], out_scale[start + token] = last[0], last[2]
        if last is not None:
            store_states(reached, slots[sequence : sequence + 1], last[1][None])
            store_states(state_scale, slots[sequence : sequence + 1], last[3][None])
    eps, eps32 = torch.finfo(v.dtype).eps, torch.finfo(torch.float32).eps
    relative = SUM_ULPS * eps32 + (FACTOR_ULPS * eps if eps > eps32 else 0.0)
    tiny = torch.finfo(v.dtype).smallest_normal * eps / 2  # half the distance of subnormal numbers
    return (
        Expected(out, ulps=relative / eps, rtol=0.51 * eps, scale=out_scale + tiny / relative),
        Expected(reached, ulps=relative / eps32, scale=state_scale),
    )


def eager(q, k, v, g, beta, cu_seqlens, state, slots, scale, l2norm=False, has_initial_state=None):
    """What a model written in plain torch does for one sequence after another: chunks in fp32, padded to 64."""
    held, bounds = initial_states(state, slots, has_initial_state), cu_seqlens.tolist()
    out = torch.empty_like(v)
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end == start:
            continue
        rows = (tensor[start:end] for tensor in (q, k, v, g, beta))
        out[start:end], last = eager_sequence(*rows, held[sequence], scale, l2norm)
        store_states(state, slots[sequence : sequence + 1], last[None])
    return out


def eager_sequence(q, k, v, g, beta, state, scale, l2norm):
    """(out [T, HV, V], state) of one sequence, by the steps of transformers' Qwen3-Next."""
    tokens, group, size = len(q), v.shape[1] // q.shape[1], spec.CHUNK
    q, k = (rows.repeat_interleave(group, dim=1) for rows in (q, k))
    q, k, v, g, beta = (rows.transpose(0, 1).float().contiguous() for rows in (q, k, v, g, beta))
    if l2norm:
        q, k = (rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6) for rows in (q, k))
    padding = -tokens % size
    q, k, v = (F.pad(rows, (0, 0, 0, padding)).unflatten(1, (-1, size)) for rows in (q * scale, k, v))
    g, beta = (F.pad(rates, (0, padding)).unflatten(1, (-1, size)) for rates in (g, beta))
    g = g.cumsum(-1)
    above = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    pairs = (g[..., :, None] - g[..., None, :]).masked_fill(above, -math.inf).exp()
    k_beta, v_beta = k * beta[..., None], v * beta[..., None]
    system = (k_beta @ k.mT) * pairs
    weights = (q @ k.mT) * pairs
    u = torch.linalg.solve_triangular(system, v_beta, upper=False, unitriangular=True)
    w = torch.linalg.solve_triangular(system, k_beta * g.exp()[..., None], upper=False, unitriangular=True)
    q, k = q * g.exp()[..., None], k * (g[..., -1:] - g).exp()[..., None]
    out = torch.zeros_like(u)
    for chunk in range(q.shape[1]):
        values = u[:, chunk] - w[:, chunk] @ state
        out[:, chunk] = q[:, chunk] @ state + weights[:, chunk] @ values
        state = state * g[:, chunk, -1].exp()[:, None, None] + k[:, chunk].mT @ values
    return out.flatten(1, 2)[:, :tokens].transpose(0, 1), state


SUBJECT = Subject(
    "gated_delta_prefill",
    gated_delta_prefill,
    FORMS,
    spec,
    make,
    expected,
    writes=("state",),
    baselines={"eager": eager},
)

"""The gated delta rule for few tokens as the laboratory sees it."""

import math

import torch

from wholecurve.kernels.gated_delta_decode import FORMS, gated_delta_decode, spec
from wholecurve.kernels.gated_delta_decode.reference import recurrence, widened
from wholecurve.kernels.gated_delta_decode.slots import initial_states, store_states
from wholecurve.kernels.subject import Expected, Subject

# rounding errors of sums over up to 256 channels in fp32, in units of eps · the size of their terms
SUM_ULPS = 16.0


def make(
    inputs,
    num_sequences,
    num_tokens,
    num_heads,
    num_value_heads,
    key_dim,
    value_dim,
    fresh=0,
    idle=0,
    kept=None,
    l2norm=True,
    dtype="bfloat16",
):
    """Arguments of `gated_delta_decode` for a case; slots that nobody may read hold NaN.

    Decays are weak (0.95 to 1 a token), so that what a state held stays visible.
    """
    rows = (num_sequences, num_tokens)
    slots, num_slots = slot_numbers(num_sequences, idle)
    write_slots = None
    if kept is not None:
        write_slots = [
            [num_slots + sequence * kept + token if token < kept and slot >= 0 else -1 for token in range(num_tokens)]
            for sequence, slot in enumerate(slots)
        ]
        num_slots += num_sequences * kept
    state = inputs.full(num_slots, num_value_heads, key_dim, value_dim, value=math.nan, dtype="float32")
    used = [slot for slot in slots[fresh:] if slot >= 0]
    state[inputs.fixed(used, "int64")] = inputs.normal(len(used), *state.shape[1:], dtype="float32")
    # without a norm inside, keys of length 1 and more would let the state grow from token to token
    spread = 1.0 if l2norm else 0.5 / math.sqrt(key_dim)
    return {
        "q": inputs.normal(*rows, num_heads, key_dim, dtype=dtype, scale=spread),
        "k": inputs.normal(*rows, num_heads, key_dim, dtype=dtype, scale=spread),
        "v": inputs.normal(*rows, num_value_heads, value_dim, dtype=dtype),
        "g": inputs.uniform(*rows, num_value_heads, low=-0.05, high=0.0),
        "beta": inputs.uniform(*rows, num_value_heads, dtype=dtype),
        "state": state,
        "slots": inputs.fixed(slots, "int32"),
        "scale": 1 / math.sqrt(key_dim),
        "l2norm": l2norm,
        "has_initial_state": None if not fresh else inputs.fixed([b >= fresh for b in range(num_sequences)], "bool"),
        "write_slots": None if write_slots is None else inputs.fixed(write_slots, "int32").view(rows),
    }


def slot_numbers(num_sequences, idle):
    """(slots, number of slots): the last `idle` sequences have none, and no sequence has slot 0 or 1."""
    slots = [num_sequences + 1 - sequence for sequence in range(num_sequences)]
    return slots[: num_sequences - idle] + [-1] * idle, num_sequences + 2


def expected(q, k, v, g, beta, state, slots, scale, l2norm=False, has_initial_state=None, write_slots=None):
    """The recurrence in float64; the error of a sum in fp32 grows like a random walk over its terms."""
    out, out_scale = torch.empty_like(v, dtype=torch.float64), torch.empty_like(v, dtype=torch.float64)
    reached, state_scale = state.double(), torch.zeros_like(state, dtype=torch.float64)
    started = initial_states(reached, slots, has_initial_state)
    if write_slots is None:
        write_slots = torch.full(v.shape[:2], -1, device=v.device)
        write_slots[:, -1:] = slots[:, None]
    wide = widened(*(tensor.double() for tensor in (q, k, v, g, beta)), scale, l2norm)
    for sequence, rows in enumerate(zip(*wide)):
        for token, traced in enumerate(traced_recurrence(*rows, started[sequence])):
            out[sequence, token], out_scale[sequence, token] = traced[0], traced[2]
            target = write_slots[sequence, token : token + 1]
            store_states(reached, target, traced[1][None])
            store_states(state_scale, target, traced[3][None])
    return rounded_once(out, out_scale, v.dtype), Expected(reached, ulps=SUM_ULPS, scale=state_scale)


def rounded_once(value, scale, dtype):
    """Expected of sums that are taken in fp32 and rounded to `dtype` at the end: half a unit for that."""
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal * limits.eps / 2  # and half the distance of subnormal numbers
    noise = SUM_ULPS * torch.finfo(torch.float32).eps
    return Expected(value, ulps=noise / limits.eps, rtol=0.51 * limits.eps, scale=scale + tiny / noise)


def traced_recurrence(q, k, v, g, beta, state):
    """What `recurrence` yields, with the size of rounding errors: (output, state, scale of the output's error
    [HV, V], scale of the state's error [HV, K, V]) per token.

    A form with relative rounding errors ε, independent of each other, has an error of about ε · scale: terms of a sum
    in quadrature, and errors that earlier tokens left in the state decay with it. (The rule itself is a contraction
    for keys of length up to 1: it does not amplify them.)
    """
    left = torch.zeros_like(state)  # squares of what rounding left in the state
    steps = recurrence(q, k, v, g, beta, state)
    for token in range(len(v)):
        key, query, decay = k[token].square(), q[token].square(), (2 * g[token]).exp()[:, None, None]
        # the change of this token comes from a difference: it is as exact as v and what the key finds are
        parts = v[token].square() + torch.einsum("hkv,hk->hv", decay * state.square(), key)
        left = decay * left + key[:, :, None] * (beta[token].square()[:, None] * parts)[:, None, :]
        output, reached = next(steps)
        sizes = left + reached.square()
        yield output, reached, torch.einsum("hkv,hk->hv", sizes, query).sqrt(), sizes.sqrt()


def eager(q, k, v, g, beta, state, slots, scale, l2norm=False, has_initial_state=None, write_slots=None):
    """What a model written in plain torch does, call by call."""
    held = initial_states(state, slots, has_initial_state)
    dtype, group = v.dtype, v.shape[2] // q.shape[2]
    q, k, v, g, beta = (tensor.float() for tensor in (q, k, v, g, beta))
    if l2norm:
        q, k = (rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6) for rows in (q, k))
    q, k = (rows.repeat_interleave(group, dim=2) for rows in (q * scale, k))
    out = torch.empty_like(v)
    for token in range(v.shape[1]):
        held = held * g[:, token].exp()[..., None, None]
        found = (held * k[:, token, :, :, None]).sum(dim=-2)
        change = (v[:, token] - found) * beta[:, token, :, None]
        held = held + k[:, token, :, :, None] * change[:, :, None, :]
        out[:, token] = (held * q[:, token, :, :, None]).sum(dim=-2)
        if write_slots is not None:
            store_states(state, write_slots[:, token], held)
    if write_slots is None:
        store_states(state, slots, held)
    return out.to(dtype)


SUBJECT = Subject(
    "gated_delta_decode",
    gated_delta_decode,
    FORMS,
    spec,
    make,
    expected,
    writes=("state",),
    baselines={"eager": eager},
)

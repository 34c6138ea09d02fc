"""Depthwise causal convolution in Triton: a tile of tokens and channels per program, one product per tap."""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.causal_conv.spec import MAX_HISTORY, places, tile
from wholecurve.kernels.cost import next_power_of_2
from wholecurve.kernels.forms import require
from wholecurve.kernels.launch import Launch, run_all

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def tile_at(place, cu_seqlens, num_sequences, length, UNIFORM: tl.constexpr, TILE: tl.constexpr, BLOCK_B: tl.constexpr):
    """(sequence, its first token, the token after its last, the tile's first token) at a place of the grid; there is
    no tile where its first token is not before the end.

    The tiles of sequence b are at the places from cu_seqlens[b] // TILE + b on: sequences never overlap, and the grid
    is known without reading a length.
    """
    if UNIFORM:
        tiles = tl.cdiv(length, TILE)
        sequence = place // tiles
        start = sequence * length
        end = start + length
        first = start + place % tiles * TILE
    else:
        sequences = tl.arange(0, BLOCK_B)
        starts = tl.load(cu_seqlens + sequences, mask=sequences < num_sequences, other=0).to(tl.int64)
        begun = (starts // TILE + sequences <= place) & (sequences < num_sequences)
        sequence = tl.sum(begun.to(tl.int64), axis=0) - 1
        start = tl.load(cu_seqlens + sequence).to(tl.int64)
        end = tl.load(cu_seqlens + (sequence + 1)).to(tl.int64)
        first = start + (place - start // TILE - sequence) * TILE
    return sequence, start, end, first


@triton.jit
def conv_kernel(
    x,  # [T, C]
    weight,  # [C, WIDTH], contiguous
    bias,  # [C], any pointer without HAS_BIAS
    state,  # [num_slots, C, HISTORY], slots any distance apart
    slots,  # [B]
    has_initial_state,  # [B], any pointer without HAS_FLAGS
    write_slots,  # [B, Q], contiguous, any pointer without HAS_WRITE_SLOTS
    cu_seqlens,  # [B + 1], any pointer when UNIFORM
    out,  # [T, C], contiguous
    num_channels,
    num_sequences,
    length,
    num_kept,
    x_stride,
    state_stride,
    WIDTH: tl.constexpr,
    DILATION: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_FLAGS: tl.constexpr,
    HAS_WRITE_SLOTS: tl.constexpr,
    UNIFORM: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_HISTORY: tl.constexpr,
):
    """One program handles BLOCK_T tokens of one sequence in BLOCK_C channels, and with the first of them the state:
    a tile is no shorter than the history, so no other program reads it.
    """
    HISTORY: tl.constexpr = (WIDTH - 1) * DILATION
    # 64 bits before the products: tokens · channels and slots · channels pass 2³¹
    place = tl.program_id(0).to(tl.int64)
    sequence, start, end, first = tile_at(place, cu_seqlens, num_sequences, length, UNIFORM, BLOCK_T, BLOCK_B)
    if first >= end:
        return
    channels = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_inside = channels < num_channels
    slot = tl.load(slots + sequence).to(tl.int64)
    present = slot >= 0
    if HAS_FLAGS:
        present = present & (tl.load(has_initial_state + sequence) != 0)
    held = state + slot * state_stride
    tokens = first + tl.arange(0, BLOCK_T)
    inside = (tokens < end)[:, None] & channel_inside[None, :]
    answer = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
    if HAS_BIAS:
        answer += tl.load(bias + channels, mask=channel_inside, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(WIDTH):
        source = (tokens - (WIDTH - 1 - tap) * DILATION)[:, None]
        value = tl.load(x + source * x_stride + channels[None, :], mask=inside & (source >= start), other=0.0)
        if tap < WIDTH - 1:  # noqa: SIM102 (the first condition is known when compiling, the second is not)
            if first == start:
                carried = held + channels[None, :] * HISTORY + (HISTORY + source - start)
                value += tl.load(carried, mask=inside & (source < start) & present, other=0.0)
        factor = tl.load(weight + channels * WIDTH + tap, mask=channel_inside, other=0.0)
        answer += value.to(tl.float32) * factor.to(tl.float32)[None, :]
    if SILU:
        answer = answer * tl.sigmoid(answer)
    tl.store(out + tokens[:, None] * num_channels + channels[None, :], answer.to(out.dtype.element_ty), mask=inside)
    if first == start:
        steps = tl.arange(0, BLOCK_KEPT)
        if HAS_WRITE_SLOTS:
            kept = (steps < num_kept) & (steps < end - start)
            target = tl.load(write_slots + (sequence * num_kept + steps), mask=kept, other=-1).to(tl.int64)
            reached = steps.to(tl.int64) + 1
        else:
            target = tl.zeros([BLOCK_KEPT], tl.int64) + slot
            reached = tl.zeros([BLOCK_KEPT], tl.int64) + (end - start)
        entries = tl.arange(0, BLOCK_HISTORY).to(tl.int64)[None, None, :]
        columns = channels[None, :, None]
        # the token that an entry of the state after `reached` tokens holds; before 0: an entry of the state before
        age = reached[:, None, None] - HISTORY + entries
        writing = (target >= 0)[:, None, None] & channel_inside[None, :, None] & (entries < HISTORY)
        entry = tl.load(x + (start + age) * x_stride + columns, mask=writing & (age >= 0), other=0.0)
        before = held + (columns * HISTORY + HISTORY + age)
        entry += tl.load(before, mask=writing & (age < 0) & present, other=0.0)
        # a thread may write where another one still has to read: the slot that is read may be one that is written
        tl.debug_barrier()
        tl.store(state + target[:, None, None] * state_stride + columns * HISTORY + entries, entry, mask=writing)


def launches(
    x,
    weight,
    state,
    slots,
    cu_seqlens=None,
    bias=None,
    activation="silu",
    dilation=1,
    has_initial_state=None,
    write_slots=None,
    config=None,
):
    """([launch], out) for arguments as in `wholecurve.kernels.causal_conv.causal_conv`."""
    (num_tokens, num_channels), width, num_sequences = x.shape, weight.shape[1], slots.shape[0]
    history = (width - 1) * dilation
    require(x.dtype in DTYPES, f"causal_conv: the Triton form takes {', '.join(map(str, DTYPES))}, x is {x.dtype}")
    require(history <= MAX_HISTORY, f"causal_conv: the Triton form takes a history up to {MAX_HISTORY}, not {history}")
    require(x.stride(1) == 1 or num_channels == 1, "causal_conv: last dimension of x is strided")
    indexes = dict(slots=slots, cu_seqlens=cu_seqlens, has_initial_state=has_initial_state, write_slots=write_slots)
    for name, tensor in (indexes | dict(weight=weight, bias=bias)).items():
        require(tensor is None or tensor.is_contiguous(), f"causal_conv: {name} must be contiguous")
    require(
        state.stride()[1:] == (history, 1) or not state.numel(), "causal_conv: each slot of state must be contiguous"
    )
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    uniform = cu_seqlens is None
    length = num_tokens // max(1, num_sequences)
    block_t, block_c, num_warps = tile(num_channels, history, length if uniform else None, **(config or {}))
    num_kept = 1 if write_slots is None else write_slots.shape[1]
    launch = Launch(
        conv_kernel,
        (places(num_tokens, num_sequences, block_t, uniform), triton.cdiv(num_channels, block_c)),
        (
            *(x, weight, x if bias is None else bias, state, slots),
            slots if has_initial_state is None else has_initial_state,
            slots if write_slots is None else write_slots,
            slots if uniform else cu_seqlens,
            *(out, num_channels, num_sequences, length, num_kept, x.stride(0), state.stride(0)),
        ),
        dict(
            WIDTH=width,
            DILATION=dilation,
            SILU=activation == "silu",
            HAS_BIAS=bias is not None,
            HAS_FLAGS=has_initial_state is not None,
            HAS_WRITE_SLOTS=write_slots is not None,
            UNIFORM=uniform,
            BLOCK_B=next_power_of_2(num_sequences),
            BLOCK_T=block_t,
            BLOCK_C=block_c,
            BLOCK_KEPT=next_power_of_2(num_kept),
            BLOCK_HISTORY=next_power_of_2(history),
            num_warps=num_warps,
        ),
    )
    return [launch], out


def causal_conv_triton(
    x,
    weight,
    state,
    slots,
    cu_seqlens,
    bias,
    activation,
    dilation,
    has_initial_state,
    write_slots,
    interpreted,
):
    """See `wholecurve.kernels.causal_conv.causal_conv`; interpreted: not on the GPU."""
    arguments = (x, weight, state, slots, cu_seqlens, bias, activation, dilation, has_initial_state, write_slots)
    started, out = launches(*arguments)
    run_all(started, interpreted)
    return out

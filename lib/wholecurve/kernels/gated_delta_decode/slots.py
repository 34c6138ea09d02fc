"""Slots: where the kernels that carry a state from call to call keep it, one slot per sequence."""

import torch

INDEX_DTYPES = (torch.int32, torch.int64)


def require_slots(operation, state, slots, has_initial_state=None, write_slots=None):
    """Check the arguments of an operation that name slots of `state` [num_slots, ...].

    slots: [B] int, −1 or below num_slots. has_initial_state: None or [B] bool. write_slots: None or [B, Q] int. On
    the CPU, where they can be read at no cost, their values are checked too. ValueError for shapes, dtypes and
    slots that are written twice or written while another sequence reads them, IndexError for slots that do not exist.
    """
    for name, indexes in (("slots", slots), ("write_slots", write_slots)):
        if indexes is not None and indexes.dtype not in INDEX_DTYPES:
            raise ValueError(f"{operation}: {name} must be int32 or int64, it is {indexes.dtype}")
    if slots.dim() != 1:
        raise ValueError(f"{operation}: slots must be [sequences], it has shape {tuple(slots.shape)}")
    flags = has_initial_state
    if flags is not None and not (flags.shape == slots.shape and flags.dtype == torch.bool):
        found = f"{tuple(flags.shape)} {flags.dtype}"
        raise ValueError(f"{operation}: has_initial_state must be {tuple(slots.shape)} bool, it is {found}")
    if write_slots is not None and (write_slots.dim() != 2 or len(write_slots) != len(slots)):
        shape = tuple(write_slots.shape)
        raise ValueError(f"{operation}: write_slots must be [{len(slots)}, tokens], it has shape {shape}")
    if slots.device.type == "cpu":
        check_values(operation, len(state), slots.tolist(), None if write_slots is None else write_slots.tolist())


def check_values(operation, num_slots, slots, write_slots):
    """IndexError for slots that do not exist, ValueError for two sequences that would disturb each other.

    slots: list of int. write_slots: None or a list of such lists.
    """
    written = slots if write_slots is None else [slot for row in write_slots for slot in row]
    for named in (slots, written):
        if named and (min(named) < -1 or max(named) >= num_slots):
            wrong = next(slot for slot in named if not -1 <= slot < num_slots)
            raise IndexError(f"{operation}: slot {wrong} does not exist, there are {num_slots} (−1 stands for none)")
    owners = set(written) - {-1}
    if len(owners) + written.count(-1) < len(written):
        twice = next(slot for slot in owners if written.count(slot) > 1)
        raise ValueError(f"{operation}: slot {twice} is written twice")
    if write_slots is None or owners.isdisjoint(slots):
        return
    owner = {slot: sequence for sequence, row in enumerate(write_slots) for slot in row if slot >= 0}
    for sequence, slot in enumerate(slots):
        if owner.get(slot, sequence) != sequence:
            raise ValueError(
                f"{operation}: slot {slot} is read for sequence {sequence} and written for sequence {owner[slot]}"
            )


def initial_states(state, slots, has_initial_state=None):
    """[B, ...]: a copy of the state that each sequence starts from, zeros where it has none."""
    if has_initial_state is None and -1 not in slots.tolist():
        return state.index_select(0, slots)
    present = slots >= 0
    if has_initial_state is not None:
        present &= has_initial_state
    started = state.new_zeros(len(slots), *state.shape[1:])
    started[present] = state[slots[present]]
    return started


def store_states(state, slots, values):
    """Write values [B, ...] to their slots; −1 writes nothing."""
    if -1 in slots.tolist():
        written = slots >= 0
        slots, values = slots[written], values[written]
    state.index_copy_(0, slots.long(), values)


def require_sequences(operation, cu_seqlens, num_sequences, num_tokens):
    """Check that cu_seqlens [B + 1] int ascends from 0 to the number of tokens (values on the CPU alone)."""
    if cu_seqlens.shape != (num_sequences + 1,) or cu_seqlens.dtype not in INDEX_DTYPES:
        found = f"{tuple(cu_seqlens.shape)} {cu_seqlens.dtype}"
        raise ValueError(f"{operation}: cu_seqlens must be [{num_sequences + 1}] int32 or int64, it is {found}")
    if cu_seqlens.device.type == "cpu":
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != num_tokens or bounds != sorted(bounds):
            raise ValueError(f"{operation}: cu_seqlens must ascend from 0 to {num_tokens}, they are {bounds[:8]}")

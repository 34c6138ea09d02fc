"""Helpers of the kernel tests: guarded memory, poisoned outputs, paged caches full of poison."""

import contextlib

import pytest
import torch

from wholecurve.kernels import native

GUARD = 64  # elements on both sides: keeps 16-byte alignment in every dtype
HALF_DTYPES = (torch.bfloat16, torch.float16)
DTYPES = (*HALF_DTYPES, torch.float32)


def case_id(case):
    return "-".join(f"{name}={value}" for name, value in case.items()).replace(" ", "")


def require_form(form):
    """Skip the test where the form's library is missing."""
    if form == "interpret":
        pytest.importorskip("triton")
    if form == "native" and native.load() is None:
        pytest.skip("the native form could not be compiled here")


class Guarded:
    """Tensors inside buffers of NaN; `check()` tells whether anything around or in them was written."""

    def __init__(self):
        self.buffers = []

    def __call__(self, tensor, row_gap=0):
        """A copy of a tensor [..., width] with `row_gap` poisoned elements after each row and guards."""
        rows = tensor.numel() // tensor.shape[-1] if tensor.numel() else 0
        width = tensor.shape[-1] + row_gap
        poison = float("nan") if tensor.is_floating_point() else -7777
        buffer = torch.full((2 * GUARD + rows * width,), poison, dtype=tensor.dtype)
        inner = buffer[GUARD : GUARD + rows * width].view(*tensor.shape[:-1], width)[..., : tensor.shape[-1]]
        inner.copy_(tensor)
        self.buffers.append((buffer, buffer.clone()))
        return inner

    def check(self):
        for buffer, before in self.buffers:
            assert torch.equal(buffer.nan_to_num(nan=12345.0), before.nan_to_num(nan=12345.0)), "an input was written"


@contextlib.contextmanager
def poisoned_outputs(monkeypatch):
    """torch.empty and torch.empty_like give NaN between guard bands of NaN, which are checked at the end."""
    buffers = []

    def empty(*shape, dtype=None, device=None):
        shape = torch.Size(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        buffer = torch.full((2 * GUARD + shape.numel(),), float("nan"), dtype=dtype)
        buffers.append(buffer)
        return buffer[GUARD : GUARD + shape.numel()].view(shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "empty_like", lambda tensor: empty(tensor.shape, dtype=tensor.dtype))
        yield
    for buffer in buffers:
        assert buffer[:GUARD].isnan().all() and buffer[-GUARD:].isnan().all(), "a guard band was written"


def paged_cache(contexts, block_size, num_kv_heads, head_dim, dtype, seed=0, index_dtype=torch.int32):
    """(k_cache, v_cache, block_table, context_lens, k, v): shuffled pages, NaN and huge entries where nothing
    is stored.

    k and v: per sequence [context, G, D], what the pages hold.
    """
    generator = torch.Generator().manual_seed(seed)
    num_sequences = len(contexts)
    max_blocks = max([-(-context // block_size) for context in contexts], default=0) + 1
    num_blocks = num_sequences * max_blocks + 2
    caches = [torch.full((num_blocks, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype) for _ in "kv"]
    block_table = torch.randperm(num_blocks, generator=generator)[: num_sequences * max_blocks]
    block_table = block_table.view(num_sequences, max_blocks).to(index_dtype)
    stored = []
    for cache in caches:
        sequences = []
        for sequence, context in enumerate(contexts):
            values = torch.randn(context, num_kv_heads, head_dim, generator=generator).to(dtype)
            positions = torch.arange(context)
            cache[block_table[sequence, positions // block_size].long(), positions % block_size] = values
            sequences.append(values)
        stored.append(sequences)
    for sequence, context in enumerate(contexts):
        unused = block_table[sequence, -(-context // block_size) :]
        unused[:] = torch.tensor([-1, 2**31 - 1])[torch.arange(len(unused)) % 2]
    return *caches, block_table, torch.tensor(contexts, dtype=index_dtype), *stored

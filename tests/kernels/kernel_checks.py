"""Helpers of the kernel tests: names of cases, forms that may be missing, paged caches full of poison."""

import pytest
import torch

from wholecurve.kernels import native

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

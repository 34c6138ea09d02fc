"""What one forward pass is told about its tokens. The engine's runner fills it, models read it."""

from dataclasses import dataclass

import torch


@dataclass
class ForwardBatch:
    """Flat tokens of several sequences: first the decode rows (one token each), then the prefill chunks.

    T tokens, P of the sequences prefill a chunk, C of them decode.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, position in its own sequence
    slots: torch.Tensor  # [T] int64, block * block_size + offset where k and v of the token are stored
    logits_rows: torch.Tensor  # [R] int64, rows whose logits are wanted
    num_decodes: int  # C: rows 0 … C-1 are decode rows
    decode_block_table: torch.Tensor  # [C, max_blocks] int64, -1 where unused
    decode_context_lens: torch.Tensor  # [C] int64, keys to attend to, the new token included
    prefill_block_table: torch.Tensor  # [P, max_blocks] int64, -1 where unused
    prefill_context_lens: torch.Tensor  # [P] int64, cached prefix + new tokens
    prefill_cu_q: list[int]  # [P + 1], prefix sums of new tokens per chunk, from 0
    decode_plan: object = None  # set by the model: what its layers share, opaque to the engine
    prefill_plan: object = None


@dataclass
class KVCache:
    """Paged keys and values: one pair of tensors per layer, so that writes never alias another layer."""

    keys: list[torch.Tensor]  # num_layers x [num_blocks, block_size, G, D]
    values: list[torch.Tensor]

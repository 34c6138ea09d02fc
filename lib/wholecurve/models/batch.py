"""What one forward pass is told about its tokens, and what a model says about its caches.

The engine's runner fills a ForwardBatch, models read it. T tokens, S sequences, R rows whose logits are wanted.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

CacheKind = Literal["full", "window", "latent", "state", "history"]


@dataclass
class GroupBatch:
    """What a step tells about one cache group. What the fields hold depends on the kind of the group.

    full, window, latent: `block_table` [S, W] int64 holds the blocks of each sequence in order of position, -1 where
    unused (past the context, or wholly before the window); `slots` [T] int64 is block * block_size + offset, the place
    where the entry of each token is stored.
    state: `block_table` [S, 1 + max drafts] holds the state slots of each sequence; entry 0 is the state before its
    first new token (a sequence whose context holds no other tokens starts from zeros, whatever the slot holds);
    `slots` [T] is the slot that the state after that token is written to, -1 where nobody will read it. The slot that
    is read may be written by the same sequence.
    history: `block_table` [S, window] holds the token ids before the first new token of each sequence, the nearest
    one last, -1 where there are none; `slots` is empty.
    """

    block_table: torch.Tensor
    slots: torch.Tensor


@dataclass
class ForwardBatch:
    """Flat tokens of several sequences: first those that decode, then the chunks of prompts."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, position in its own sequence
    logits_rows: torch.Tensor  # [R] int64, rows whose logits are wanted, ascending
    cu_q: torch.Tensor  # [S + 1] int64 on the host, prefix sums of new tokens per sequence, from 0
    context_lens: torch.Tensor  # [S] int64, cached prefix + new tokens
    groups: list[GroupBatch]  # in the order of model.cache_specs
    num_decodes: int  # the first num_decodes sequences decode: each has exactly decode_queries tokens
    decode_queries: int = 1  # 1 + drafts
    max_q: int = 1  # most new tokens of any sequence
    plans: dict = field(default_factory=dict)  # what layers share; set by the model, opaque to the engine
    argmax_only: bool = False  # nobody reads the logits: a model that sets argmax may return None for them
    argmax: torch.Tensor | None = None  # [R] int64, lowest id of the largest logit, from a model that has it anyway


class CacheSpec(Protocol):
    """One kind of memory that a model keeps per token or per sequence; the engine pages it without knowing its shape.

    full and latent keep an entry per token, window one per token of the last `window` tokens, state a fixed number of
    entries per sequence, history the last `window` token ids (which the engine has anyway: nothing is allocated).
    """

    kind: CacheKind
    window: int | None

    def entry_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the entry of one token (kind state: of one slot) over all layers of the group."""
        ...

    def allocate(self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> object:
        """Memory of num_blocks blocks of block_size entries (kind state: of num_blocks slots, block_size 1)."""
        ...

    def copy_block(self, cache: object, source: int, target: int) -> None:
        """Copy a block, or a state slot, of what `allocate` gave."""
        ...


@dataclass
class KVCache:
    """Paged keys and values: one pair of tensors per layer, so that writes never alias another layer."""

    keys: list[torch.Tensor]  # num_layers x [num_blocks, block_size, G, D]
    values: list[torch.Tensor]


@dataclass(frozen=True)
class KVSpec:
    """Keys and values of num_layers layers with num_kv_heads heads of head_dim numbers, as CacheSpec."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def kind(self) -> CacheKind:
        return "full" if self.window is None else "window"

    def entry_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        shape = (num_blocks, block_size, self.num_kv_heads, self.head_dim)

        def layers() -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(self.num_layers)]

        return KVCache(layers(), layers())

    def copy_block(self, cache: KVCache, source: int, target: int) -> None:
        for tensor in cache.keys + cache.values:
            tensor[target] = tensor[source]

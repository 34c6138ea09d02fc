"""The draft model's own cache: blocks per sequence, and which of its tokens are still right."""

from dataclasses import dataclass, field

import numpy as np
import torch

from wholecurve.engine.cache.pool import BlockPool
from wholecurve.engine.sequence import Sequence
from wholecurve.models.batch import ForwardBatch, GroupBatch


@dataclass
class DraftState:
    """What the cache holds of one sequence: `computed` tokens that are its own, then `guesses` that were drafted."""

    sequence: Sequence
    blocks: list[int] = field(default_factory=list)  # in order of position
    computed: int = 0
    guesses: list[int] = field(default_factory=list)

    def settle(self) -> None:
        """Take over the guesses that came true, and roll the rest back.

        The last token of the sequence is never counted as computed: its logits are still to be had.
        """
        follows = self.sequence.token_ids[self.computed : self.computed + len(self.guesses)]
        for guess, token in zip(self.guesses, follows):
            if guess != token:
                break
            self.computed += 1
        self.computed = min(self.computed, len(self.sequence.token_ids) - 1)
        self.guesses = []


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes, from position `start` on."""

    token_ids: list[int]
    start: int
    blocks: list[int]

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def is_decode(self) -> bool:
        return len(self.token_ids) == 1 and self.start > 0


class DraftBlocks:
    """Hands the blocks of one pool to sequences as they grow."""

    def __init__(self, num_blocks: int, block_size: int):
        self.pool = BlockPool(num_blocks, block_size)

    def reserve(self, state: DraftState, tokens: int, least: int) -> int:
        """Give a sequence the blocks of `tokens` tokens, or of as many as there is room for, but not under `least`.

        Returns the tokens that now fit, at most `tokens`. Where `least` do not, the sequence loses what it has, so
        that it keeps nobody else from growing, and 0 is returned.
        """
        size = self.pool.block_size
        fit = min(tokens, (len(state.blocks) + self.pool.num_free) * size)
        if fit < least:
            self.release(state)
            return 0
        state.blocks += self.pool.take(max(0, self.pool.blocks_for(fit) - len(state.blocks)))
        return fit

    def release(self, state: DraftState) -> None:
        """Take all blocks of a sequence back; nothing of it is computed then."""
        self.pool.give_back(state.blocks)
        state.blocks, state.computed, state.guesses = [], 0, []


def chunk_batch(chunks: list[Chunk], logits_of: list[int], block_size: int, device: torch.device) -> ForwardBatch:
    """The batch of some chunks over one group of full attention, decode rows in front.

    chunks: those that decode first. logits_of: the chunks whose last row's logits are wanted.
    """
    counts = [len(chunk.token_ids) for chunk in chunks]
    positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    width = max(-(-chunk.end // block_size) for chunk in chunks)
    table = np.full((len(chunks), width), -1, dtype=np.int64)
    for row, chunk in zip(table, chunks):
        used = -(-chunk.end // block_size)
        row[:used] = chunk.blocks[:used]
    of_token = np.repeat(np.arange(len(chunks)), counts)
    slots = table[of_token, positions // block_size] * block_size + positions % block_size
    cu_q = np.cumsum([0, *counts])

    def tensor(values) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.int64)).to(device)

    return ForwardBatch(
        token_ids=tensor([token for chunk in chunks for token in chunk.token_ids]),
        positions=tensor(positions),
        logits_rows=tensor([cu_q[index + 1] - 1 for index in logits_of]),
        cu_q=torch.from_numpy(cu_q),
        context_lens=tensor([chunk.end for chunk in chunks]),
        groups=[GroupBatch(tensor(table), tensor(slots))],
        num_decodes=sum(chunk.is_decode for chunk in chunks),
        max_q=max(counts),
    )

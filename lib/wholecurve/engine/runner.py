"""Runs one scheduled step: builds the flat batch, calls the model, returns the logits that sampling needs."""

import torch

from wholecurve.engine.scheduler import ScheduledStep
from wholecurve.engine.sequence import Sequence
from wholecurve.models.batch import ForwardBatch, KVCache
from wholecurve.models.llama import Llama


def _block_table(sequences: list[Sequence], lengths: list[int], block_size: int) -> torch.Tensor:
    """[len(sequences), max_blocks] of the blocks that `lengths` tokens use, -1 where unused."""
    rows = [s.blocks[: -(-length // block_size)] for s, length in zip(sequences, lengths, strict=True)]
    width = max((len(row) for row in rows), default=0)
    table = [row + [-1] * (width - len(row)) for row in rows]
    return torch.tensor(table, dtype=torch.int64).reshape(len(rows), width)


class Runner:
    """Owns the model and its cache tensors."""

    def __init__(self, model: Llama, cache: KVCache, block_size: int):
        self.model, self.cache, self.block_size = model, cache, block_size

    def build(self, step: ScheduledStep) -> tuple[ForwardBatch, list[Sequence]]:
        """The batch of a step and the sequences, in order, whose next token its logits decide."""
        chunks = [(s, 1) for s in step.decodes] + step.prefills
        token_ids, positions, slots, logits_rows, sampled = [], [], [], [], []
        for sequence, count in chunks:
            start = sequence.num_computed
            end = start + count
            token_ids += sequence.token_ids[start:end]
            positions += range(start, end)
            size = self.block_size
            slots += [sequence.blocks[p // size] * size + p % size for p in range(start, end)]
            if end == len(sequence.token_ids):
                logits_rows.append(len(token_ids) - 1)
                sampled.append(sequence)
        decode_lens = [s.num_computed + 1 for s in step.decodes]
        prefill_lens = [s.num_computed + count for s, count in step.prefills]
        cu_q = [0]
        for _, count in step.prefills:
            cu_q.append(cu_q[-1] + count)
        device = self.model.device

        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        batch = ForwardBatch(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            slots=tensor(slots),
            logits_rows=tensor(logits_rows),
            num_decodes=len(step.decodes),
            decode_block_table=_block_table(step.decodes, decode_lens, self.block_size).to(device),
            decode_context_lens=tensor(decode_lens),
            prefill_block_table=_block_table([s for s, _ in step.prefills], prefill_lens, self.block_size).to(device),
            prefill_context_lens=tensor(prefill_lens),
            prefill_cu_q=cu_q,
        )
        return batch, sampled

    @torch.inference_mode()
    def run(self, step: ScheduledStep) -> tuple[torch.Tensor, list[Sequence]]:
        """Logits [R, V] and their R sequences; keys and values of the step's tokens are in the cache afterwards."""
        batch, sampled = self.build(step)
        logits = self.model(batch, self.cache)
        for sequence in step.decodes:
            sequence.num_computed += 1
        for sequence, count in step.prefills:
            sequence.num_computed += count
        return logits, sampled

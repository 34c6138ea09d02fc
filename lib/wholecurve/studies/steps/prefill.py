"""A prefill step: new tokens of one or several sequences on top of a cached context."""

import torch

from wholecurve.models.batch import ForwardBatch
from wholecurve.studies.steps.context import FilledContext


def chunks_of(tokens: int, chunk: int) -> list[int]:
    """New tokens per sequence of a step of `tokens`: whole chunks, the last sequence gets what is left."""
    return [chunk] * (tokens // chunk) + ([tokens % chunk] if tokens % chunk else [])


class PrefillStep:
    """New tokens of several sequences, `chunks` of them each, all on top of the cached context of `filled`.

    One row of logits per sequence, and its best token: what a server needs to go on.
    """

    def __init__(self, model, filled: FilledContext, chunks: list[int], seed: int = 0):
        self.model, self.filled, self.chunks = model, filled, chunks
        self.requests, self.rows, device = len(chunks), 1, filled.device
        generator = torch.Generator().manual_seed(seed)
        self.token_ids = torch.randint(0, model.config.vocab_size, (sum(chunks),), generator=generator).to(device)
        self.positions = torch.cat([filled.cached + torch.arange(new) for new in chunks]).to(device)
        self.cu_q = torch.tensor([0, *chunks]).cumsum(0)
        self.logits_rows = (self.cu_q[1:] - 1).to(device)
        self.context_lens = torch.tensor([filled.cached + new for new in chunks], device=device)
        self.group = filled.group(self.requests, chunks)

    def batch(self) -> ForwardBatch:
        """The batch of every step; its plans are made anew, as in an engine."""
        return ForwardBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            logits_rows=self.logits_rows,
            cu_q=self.cu_q,
            context_lens=self.context_lens,
            groups=[self.group],
            num_decodes=0,
            max_q=max(self.chunks),
        )

    @torch.inference_mode()
    def work(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step. Returns (logits [sequences, V], best token [sequences])."""
        logits = self.model(self.batch(), self.filled.caches)
        return logits, logits.argmax(dim=-1)

    def restart(self) -> None:
        """Every step is the first one: there is nothing to go back to."""

    def outcome(self) -> dict:
        """Nothing comes out of a step but its time."""
        return {}

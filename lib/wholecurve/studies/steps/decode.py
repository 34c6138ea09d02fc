"""A decode step over a filled cache: forward pass, verification of the drafts, feedback of the tokens."""

import torch

from wholecurve.kernels.verification import verification
from wholecurve.models.batch import ForwardBatch
from wholecurve.studies.steps.acceptance import STEP_STRIDE, Acceptance, request_seeds
from wholecurve.studies.steps.context import FilledContext, WrongCache


class DecodeStep:
    """`requests` sequences verify `acceptance.drafts` drafts each, over and over at the same context.

    Every step stores its 1 + drafts new tokens in the same slots, so that the context stays what the cell says. The
    token that verification adds is the first one that the next step computes; drafts are random tokens that stay.
    Everything lies on the device and nothing is read on the host, so `work` can be captured in a CUDA graph.
    """

    def __init__(self, model, filled: FilledContext, requests: int, acceptance: Acceptance, seed: int = 0):
        self.model, self.filled = model, filled
        self.requests, self.acceptance = requests, acceptance
        self.rows, device = 1 + acceptance.drafts, filled.device
        generator = torch.Generator().manual_seed(seed)
        shape = (requests, self.rows)
        tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator).to(device)
        self.first_tokens = tokens.flatten()
        self.token_ids = self.first_tokens.clone()
        self.drafts = tokens[:, 1:].contiguous()  # [B, K]
        self.positions = (filled.cached + torch.arange(self.rows)).repeat(requests).to(device)
        self.logits_rows = torch.arange(requests * self.rows, device=device)
        self.context_lens = torch.full((requests,), filled.cached + self.rows, device=device)
        self.group = filled.group(requests, [self.rows] * requests)
        self.cu_q = torch.arange(requests + 1) * self.rows
        self.seeds = request_seeds(requests, seed, device)
        self.numbers = torch.zeros(requests, dtype=torch.int64, device=device)  # of the next step, per request
        self.rates = acceptance.rates(requests, device)
        self.temperature = torch.zeros(requests, device=device)
        self.num_accepted = torch.zeros(requests, dtype=torch.int64, device=device)  # over all steps since `restart`

    def batch(self) -> ForwardBatch:
        """The batch of the next step; its plans are made anew, as in an engine."""
        return ForwardBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            logits_rows=self.logits_rows,
            cu_q=self.cu_q,
            context_lens=self.context_lens,
            groups=[self.group],
            num_decodes=self.requests,
            decode_queries=self.rows,
            max_q=self.rows,
        )

    @torch.inference_mode()
    def work(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step. Returns (logits [B · (1 + K), V], tokens [B, 1 + K] with −1 after the last)."""
        logits = self.model(self.batch(), self.filled.caches)
        tokens, accepted = verification(
            self.drafts,
            logits.unflatten(0, (self.requests, self.rows)),
            self.temperature,
            self.seeds,
            self.numbers,
            acceptance_rates=self.rates,
        )
        accepted = accepted.to(torch.int64)
        self.token_ids.view(self.requests, self.rows)[:, 0] = tokens.gather(1, accepted[:, None])[:, 0]
        self.num_accepted += accepted
        self.numbers += STEP_STRIDE
        return logits, tokens

    def restart(self) -> None:
        """Go back to the first tokens, and count steps and accepted drafts from here on."""
        self.token_ids.copy_(self.first_tokens)
        self.numbers.zero_()
        self.num_accepted.zero_()

    def outcome(self) -> dict:
        """Tokens per step that verification gave on average since `restart`, as a column.

        WrongCache where the drafts that it accepted are not those of the acceptance pattern.
        """
        steps = int(self.numbers[0]) // STEP_STRIDE
        expected = sum(self.acceptance.accepted(self.seeds, step) for step in range(steps))
        if not steps or not torch.equal(self.num_accepted.cpu(), torch.as_tensor(expected)):
            raise WrongCache(f"verification accepted other drafts over {steps} steps than the pattern says")
        accepted = float(self.num_accepted.sum()) / (steps * self.requests)
        return {"tokens_per_step_measured": 1 + accepted}

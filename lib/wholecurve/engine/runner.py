"""Runs steps: brings a step's batch to the device, calls the model, samples. On the caller's thread or on its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from wholecurve.engine.batching import StepInputs
from wholecurve.engine.sampling import SampledStep, Sampler, SampleRow, TokenLogprobs

# (sequences, drafts of each, logits of 1 + drafts rows each) -> tokens of each; see `speculation`
Judge = Callable[[list, list[list[int]], torch.Tensor], list[list[int]]]


@dataclass
class StepResult:
    """What a step gave, perhaps still on its way from the device.

    sampled: a token per row of logits. judged: instead of it the tokens of each sequence, where a proposer decides.
    """

    sampled: SampledStep | None = None
    judged: list[list[int]] | None = None
    on_host: torch.Tensor | None = None  # pinned, being copied
    arrived: "torch.cuda.Event | None" = None

    def tokens(self) -> list[int]:
        """The sampled tokens; waits for the device."""
        if self.sampled is None:
            return []
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.on_host.tolist()

    def logprobs(self) -> list[TokenLogprobs | None] | None:
        """Per row what its request asked for, None if none did; waits for the device."""
        return None if self.sampled is None else self.sampled.logprobs


class Runner:
    """Owns the model's caches and the sampler.

    With `overlap` steps can also be run one after the other on a thread of their own. The tokens that a step samples
    then stay on the device as well, one per row of the groups' tables, where the next step finds them.
    """

    def __init__(self, model, caches: list[object], max_sequences: int, overlap: bool = False):
        self.model, self.caches = model, caches
        self.sampler = Sampler(model.config.vocab_size, model.device)
        self._last_tokens = torch.zeros(max_sequences, dtype=torch.int64, device=model.device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wholecurve-step") if overlap else None

    def submit(self, inputs: StepInputs, rows: list[SampleRow], judge: Judge | None = None) -> Future:
        """Run a step on the runner's thread, after those submitted before."""
        return self._thread.submit(self.run, inputs, rows, judge)

    @torch.inference_mode()
    def run(self, inputs: StepInputs, rows: list[SampleRow], judge: Judge | None = None) -> StepResult:
        """Run a step now; its entries are in the caches afterwards. rows: one per row of logits."""
        for group, source, target in inputs.copies:
            self.model.cache_specs[group].copy_block(self.caches[group], source, target)
        batch, pending_places, pending_rows, sampled_rows = inputs.to_device(torch.device(self.model.device))
        if len(pending_places):
            # -1 is of a sequence that had nothing to choose: it has ended, whatever is computed for it here
            batch.token_ids[pending_places] = self._last_tokens[pending_rows].clamp(min=0)
        batch.argmax_only = judge is None and all([row.request.is_plain for row in rows])
        logits = self.model(batch, self.caches)
        if not inputs.sampled:
            return StepResult()
        if judge is not None:
            sequences = [sequence for sequence, _ in inputs.sampled]
            drafts = [sequence.drafts[:count] for sequence, count in inputs.sampled]
            return StepResult(judged=judge(sequences, drafts, logits))
        sampled = self.sampler.sample(logits, rows, batch.argmax)
        if self._thread is not None and len(sampled_rows) == len(sampled.tokens):
            self._last_tokens[sampled_rows] = sampled.tokens
        return self._to_host(sampled)

    def _to_host(self, sampled: SampledStep) -> StepResult:
        """Begin to copy the tokens, before the next step can overwrite what they are in."""
        if sampled.tokens.device.type == "cpu":
            return StepResult(sampled, on_host=sampled.tokens.clone())
        on_host = torch.empty(sampled.tokens.shape, dtype=torch.int64, pin_memory=True)
        on_host.copy_(sampled.tokens, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return StepResult(sampled, on_host=on_host, arrived=arrived)

"""The engine's front: add requests, step, collect tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from wholecurve.engine.cache import BlockPool, allocate_cache
from wholecurve.engine.runner import Runner
from wholecurve.engine.sampling import SamplingParams, sample_batch
from wholecurve.engine.scheduler import Scheduler
from wholecurve.engine.sequence import Sequence
from wholecurve.errors import UserError
from wholecurve.models.llama import Llama


@dataclass(frozen=True)
class StepOutput:
    """What one step brought for one request. `finish_reason` is None while it goes on, else "stop" or "length"."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None


class Engine:
    """Continuous batching over a paged cache.

    `cache_tokens` is the capacity of the cache in tokens, rounded up to whole blocks; `max_batch_tokens` bounds the
    tokens of one step (decode rows and prefill chunks together), `max_sequences` the requests that run at once.
    With `check` the invariants of scheduler and cache are asserted after every step.
    """

    def __init__(
        self,
        model: Llama,
        *,
        cache_tokens: int = 16384,
        block_size: int = 16,
        max_batch_tokens: int = 2048,
        max_sequences: int = 64,
        check: bool = False,
    ):
        if cache_tokens < 1 or block_size < 1:
            raise UserError(f"cache_tokens is {cache_tokens}, block_size {block_size}; both must be at least 1")
        self.model, self.check = model, check
        self.pool = BlockPool(-(-cache_tokens // block_size), block_size)
        cache = allocate_cache(model.config, self.pool.num_blocks, block_size, model.dtype, model.device)
        self.runner = Runner(model, cache, block_size)
        self.scheduler = Scheduler(self.pool, max_batch_tokens, max_sequences)
        self._requests: dict[str, Sequence] = {}

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> None:
        """Queue a request. UserError for an empty or too long prompt, an unknown token, or an id in use."""
        config = self.model.config
        if request_id in self._requests:
            raise UserError(f"request {request_id}: this id is in use")
        if not prompt_ids:
            raise UserError(f"request {request_id}: the prompt has no tokens")
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < config.vocab_size:
            raise UserError(f"request {request_id}: a token id lies outside the vocabulary of {config.vocab_size}")
        sequence = Sequence(request_id, prompt_ids, params)
        if sequence.max_tokens > config.max_position:
            raise UserError(
                f"request {request_id}: prompt {len(prompt_ids)} + max_new_tokens {params.max_new_tokens} exceed "
                f"the model's context of {config.max_position}"
            )
        self.scheduler.add(sequence)
        self._requests[request_id] = sequence

    def abort(self, request_id: str) -> None:
        """Drop a request at any moment; its blocks are free at once. Unknown ids are an error."""
        if request_id not in self._requests:
            raise UserError(f"request {request_id}: not known, or finished")
        self.scheduler.remove(self._requests.pop(request_id))

    def step(self) -> list[StepOutput]:
        """Run one step and return the tokens that it sampled. Nothing to do returns an empty list."""
        step = self.scheduler.schedule()
        if step.is_empty:
            return []
        logits, sequences = self.runner.run(step)
        tokens = sample_batch(logits, [s.sampler for s in sequences]) if sequences else []
        outputs = []
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token, self.model.config.eos_token_ids)
            outputs.append(StepOutput(sequence.request_id, [token], sequence.finish_reason))
            if sequence.finish_reason:
                self.scheduler.remove(self._requests.pop(sequence.request_id))
        if self.check:
            self.scheduler.check_integrity()
        return outputs

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
        """Sampled tokens of each prompt, all prompts in one continuous batch; after an error none of them stays."""
        results: dict[str, list[int]] = {}
        try:
            for i, prompt in enumerate(prompts):
                self.add(f"generate-{i}", prompt, params)
                results[f"generate-{i}"] = []
            while any(request_id in self._requests for request_id in results):
                for output in self.step():
                    if output.request_id in results:
                        results[output.request_id] += output.token_ids
        finally:
            for request_id in results:
                if request_id in self._requests:
                    self.abort(request_id)
        return list(results.values())

    def stream(self, prompt_ids: list[int], params: SamplingParams) -> Iterator[int]:
        """Tokens of one prompt as they come; closing the iterator early aborts the request."""
        self.add("stream", prompt_ids, params)
        try:
            while "stream" in self._requests:
                for output in self.step():
                    if output.request_id == "stream":
                        yield from output.token_ids
        finally:
            if "stream" in self._requests:
                self.abort("stream")

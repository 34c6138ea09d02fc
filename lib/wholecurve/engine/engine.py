"""The engine's front: add requests, step, collect tokens."""

import os
from collections import deque
from collections.abc import Container, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wholecurve.engine.batching import BatchBuilder
from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.intake import Intake
from wholecurve.engine.outputs import EngineStats, StepOutput, named_end, take_tokens
from wholecurve.engine.runner import Runner, StepResult
from wholecurve.engine.sampling import SampleRow, SamplingParams
from wholecurve.engine.scheduler import Scheduler
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.speculation.verify import num_matching, usable_drafts
from wholecurve.errors import UserError

if TYPE_CHECKING:
    from wholecurve.engine.speculation.proposer import Proposer

CHECK_VARIABLE = "WHOLECURVE_CHECK"  # set to 1, every engine checks itself after every step


@dataclass
class LaunchedStep:
    """A step that was begun: the sequences that it gives tokens to, each with its drafts, and its result."""

    sampled: list[tuple[Sequence, int]]
    result: StepResult | Future


class Engine:
    """Continuous batching over paged caches.

    model: `config`, `dtype`, `device`, `cache_specs`, and `model(batch, caches) -> logits`. tokenizer: for text, stop
    strings and grammars. `cache_tokens` is what the caches hold, rounded up to whole blocks; `block_size` is one number
    or one per cache group. `max_batch_tokens` bounds the tokens of one step (decode rows, drafts and prefill chunks
    together), `max_sequences` the requests that run at once. prefix_cache: keep the beginnings of texts for requests
    that begin alike, within `domain` and a request's salt. overlap: begin a step before the tokens of the last one are
    known; a request that needs them on the host (penalties, a grammar), or speculation, makes steps run one by one.
    speculation: proposes drafts. check: assert the invariants of scheduler and caches after every step.
    """

    def __init__(
        self,
        model,
        *,
        tokenizer=None,
        cache_tokens: int = 16384,
        block_size: int | tuple[int, ...] = 16,
        max_batch_tokens: int = 2048,
        max_sequences: int = 64,
        prefix_cache: bool = False,
        overlap: bool = False,
        speculation: "Proposer | None" = None,
        check: bool = False,
        domain: str = "",
    ):
        self.model, self.speculation = model, speculation
        self.check = check or os.environ.get(CHECK_VARIABLE) == "1"
        self.overlap = overlap and speculation is None
        self.cache = CacheManager(
            model.cache_specs,
            CacheSettings(
                cache_tokens=cache_tokens,
                block_sizes=block_size,
                max_sequences=max_sequences,
                max_batch_tokens=max_batch_tokens,
                max_drafts=speculation.max_drafts if speculation else 0,
                prefix_cache=prefix_cache,
                domain=domain,
            ),
        )
        self.scheduler = Scheduler(self.cache, max_batch_tokens, max_sequences)
        self.runner = Runner(model, self.cache.allocate_all(model.dtype, model.device), max_sequences, self.overlap)
        self._intake, self._builder = Intake(model.config, tokenizer), BatchBuilder(self.cache)
        self._judge = getattr(speculation, "judge", None)
        self._requests: dict[str, Sequence] = {}
        self._num_stepwise = 0  # requests that keep steps from overlapping
        self._in_flight: deque[LaunchedStep] = deque()
        self._outputs: list[StepOutput] = []  # of steps that were collected, but not reported yet
        self._output_tokens = self._drafts_proposed = self._drafts_accepted = 0

    # ---- requests

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has more to bring."""
        return bool(self._requests or self._outputs)

    def add(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, priority: int = 0, cache_salt: str = ""
    ) -> None:
        """Queue a request. Lower priority numbers go first; only requests of one salt share cached prefixes.

        UserError for what can never run, and for an id in use.
        """
        if request_id in self._requests:
            raise UserError(f"request {request_id}: this id is in use")
        if self._judge:
            self.speculation.check_request(request_id, params)
        sequence = self._intake.sequence(request_id, prompt_ids, params, priority, cache_salt)
        self.scheduler.add(sequence)
        self._requests[request_id] = sequence
        self._num_stepwise += sequence.sampling.needs_history

    def prepare(self, params: SamplingParams) -> None:
        """Do ahead what would make `add` slow: compile a grammar. May be called on any thread. UserError as `add`."""
        self._intake.prepare(params)

    def abort(self, request_id: str) -> None:
        """Drop a request at any moment; its blocks are free at once. Unknown ids are an error."""
        if request_id not in self._requests:
            raise UserError(f"request {request_id}: not known, or finished")
        sequence = self._requests[request_id]
        sequence.finish_reason = "abort"
        self._forget(sequence)
        self._drop_outputs({request_id})

    def _drop_outputs(self, request_ids: Container[str]) -> None:
        """Keep what a step that failed had collected of these requests from those that come under their ids."""
        self._outputs = [output for output in self._outputs if output.request_id not in request_ids]

    def _forget(self, sequence: Sequence) -> None:
        del self._requests[sequence.request_id]
        self._num_stepwise -= sequence.sampling.needs_history
        self.scheduler.remove(sequence)
        if self.speculation:
            self.speculation.forget(sequence)

    # ---- steps

    def step(self) -> list[StepOutput]:
        """Run one step and return what it brought; where steps overlap, begin one and return what the last brought.

        Nothing to do returns an empty list. An error in a step costs the work of the running requests, but none of
        their tokens: they wait to be computed again.
        """
        try:
            if self.overlap and not self._num_stepwise:
                self._step_ahead()
            else:
                while self._in_flight:
                    self._collect()
                if self._launch(ahead=False):
                    self._collect()
        except BaseException:
            self._recover()
            raise
        if self.check:
            self.scheduler.check_integrity()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _step_ahead(self) -> None:
        """Begin a step, then take in the one before it, which ran meanwhile."""
        launched = self._launch(ahead=True)
        while len(self._in_flight) > launched:
            self._collect()
        if not self._requests:
            while self._in_flight:  # of requests that have ended
                self._collect()

    def _launch(self, ahead: bool) -> bool:
        """Begin a step, on the runner's thread or here and to its end. False when there is nothing to do."""
        if self.speculation:
            self._propose()
        step = self.scheduler.schedule()
        if self.speculation:
            for sequence in step.preempted:
                self.speculation.forget(sequence)
        if step.is_empty:
            return False
        inputs = self._builder.build(step)
        rows = [] if self._judge else sample_rows(inputs.sampled)
        self.scheduler.advance(step, inputs.sampled)
        run = self.runner.submit if ahead else self.runner.run
        self._in_flight.append(LaunchedStep(inputs.sampled, run(inputs, rows, self._judge)))
        return True

    def _propose(self) -> None:
        """Let the proposer guess for the sequences that decode; the scheduler takes what there is room for."""
        sequences = [s for s in self.scheduler.running if s.is_decoding]
        limits = [min(self.speculation.max_drafts, s.params.max_new_tokens - s.num_sampled - 1) for s in sequences]
        proposals = self.speculation.propose(sequences, limits)
        for sequence, drafts, limit in zip(sequences, proposals, limits, strict=True):
            sequence.drafts = usable_drafts(drafts, limit, self.model.config.vocab_size)

    def _collect(self) -> None:
        """Wait for the oldest step in flight and take its tokens in."""
        launched = self._in_flight.popleft()
        result = launched.result.result() if isinstance(launched.result, Future) else launched.result
        judged, tokens, logprobs = result.judged, result.tokens(), result.logprobs()
        outputs, end = self._outputs, 0
        for place, (sequence, num_drafts) in enumerate(launched.sampled):
            start, end = end, end + 1 + num_drafts
            if sequence.finish_reason:
                continue  # it ended while the step ran
            sequence.num_pending -= 1
            if sequence.is_simple and not num_drafts and judged is None and tokens[start] >= 0:
                taken, text = tokens[start:end], None  # as most are: nothing else to do
                sequence.append(taken[0])
                stop_reason = named_end(sequence) if sequence.finish_reason else None
            else:
                given = tokens[start:end] if judged is None else judged[place]
                if num_drafts:
                    given = self._settle(sequence, given, num_drafts)
                taken, text, stop_reason = take_tokens(sequence, given)
                # drafts that stay; what follows the end of an answer does not
                self._drafts_accepted += min(len(given) - 1, len(taken))
            of_tokens = logprobs[start : start + len(taken)] if sequence.params.logprobs is not None else None
            self._output_tokens += len(taken)
            reason, cached = sequence.finish_reason, sequence.num_cached
            outputs.append(StepOutput(sequence.request_id, taken, reason, text, of_tokens, cached, stop_reason))
            if reason:
                self._forget(sequence)

    def _settle(self, sequence: Sequence, given: list[int], num_drafts: int) -> list[int]:
        """Keep the drafts that were right, and of what was given only what follows from them."""
        if self._judge:
            num_accepted = len(given) - 1
        else:
            num_accepted = num_matching(sequence.drafts, given)
            given = given[: num_accepted + 1]
        sequence.drafts = []
        self.cache.rollback(sequence, num_drafts - num_accepted, num_accepted)
        self._drafts_proposed += num_drafts
        return given

    def _recover(self) -> None:
        """After an error: forget the steps that were begun, and let what ran wait to be computed again."""
        wait([launched.result for launched in self._in_flight if isinstance(launched.result, Future)])
        self._in_flight.clear()
        if self.speculation:
            for sequence in self.scheduler.running:
                self.speculation.forget(sequence)
        self.scheduler.reset()

    # ---- whole texts

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
            self._drop_outputs(results)
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
            self._drop_outputs({"stream"})

    # ---- what it does

    def stats(self) -> EngineStats:
        """Counts as they stand between two steps."""
        scheduler, pools = self.scheduler, [pool for pool in self.cache.pools if pool is not None]
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_free=sum(pool.num_free for pool in pools),
            blocks_cached=sum(pool.num_cached for pool in pools),
            blocks_used=sum(pool.num_used for pool in pools),
            blocks_total=sum(pool.num_blocks for pool in pools),
            prefix_queried_tokens=self.cache.prefix_queried_tokens,
            prefix_hit_tokens=self.cache.prefix_hit_tokens,
            preemptions=scheduler.num_preemptions,
            steps=scheduler.num_steps,
            prompt_tokens=scheduler.num_prompt_tokens,
            output_tokens=self._output_tokens,
            drafts_proposed=self._drafts_proposed,
            drafts_accepted=self._drafts_accepted,
            synthetic=self._judge is not None,
        )


def sample_rows(sampled: list[tuple[Sequence, int]]) -> list[SampleRow]:
    """A row per token that a step samples: the next of each sequence, and one after each of its drafts."""
    rows = []
    for sequence, num_drafts in sampled:
        index = len(sequence.token_ids) - len(sequence.prompt_ids) + sequence.num_pending
        rows.append(SampleRow(sequence.sampling, index))
        for count in range(1, num_drafts + 1):
            rows.append(SampleRow(sequence.sampling, index + count, sequence.drafts[:count]))
    return rows

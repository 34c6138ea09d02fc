"""OpenVINO GenAI: its continuous-batching pipeline on an F16 GGUF of the same weights."""

import itertools
from importlib.metadata import version

import numpy as np
import openvino as ov
import openvino_genai as genai

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.models.config import config_from_hf
from wholecurve.studies.contenders.base import ContenderSettings, SteppedContender
from wholecurve.studies.request import Request

_BLOCK_TOKENS = 32  # of the CPU plugin's paged attention
_PRECISION = {"bfloat16": "bf16", "float32": "f32"}

# Setting of a plan -> property of the CPU plugin; None leaves the plugin its own choice.
_PROPERTY = {
    "pin_threads": "ENABLE_CPU_PINNING",
    "hyper_threading": "ENABLE_HYPER_THREADING",
    "num_streams": "NUM_STREAMS",
}


def _own_properties(options: dict) -> dict:
    return {name: options[key] for key, name in _PROPERTY.items() if options.get(key) is not None}


class OpenVinoContender(SteppedContender):
    """`ContinuousBatchingPipeline` on the CPU, compute and key-value cache in the study's type."""

    def __init__(self, settings: ContenderSettings):
        if settings.gguf is None:
            raise UserError("contender openvino: it reads GGUF checkpoints only; give the study a .gguf model")
        self.properties = {
            "INFERENCE_PRECISION_HINT": _PRECISION[settings.dtype],
            # By default the CPU plugin keeps keys and values in 8 bits, which no other contender does.
            "KV_CACHE_PRECISION": _PRECISION[settings.dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": settings.threads,
            **_own_properties(settings.options),
        }
        self.scheduler = genai.SchedulerConfig()
        self.scheduler.max_num_batched_tokens = settings.max_batch_tokens
        self.scheduler.max_num_seqs = settings.max_sequences
        self.scheduler.num_kv_blocks = -(-settings.cache_tokens // _BLOCK_TOKENS) + 1
        self.scheduler.dynamic_split_fuse = settings.options.get("split_fuse", True)
        self.scheduler.enable_prefix_caching = False
        self.settings = settings
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(settings.gguf), self.scheduler, "CPU", dict(self.properties)
        )
        self._numbers = itertools.count()
        self._running: dict[str, tuple[object, int]] = {}
        self._require_cache_precision()

    def _require_cache_precision(self) -> None:
        """The pipeline does not tell the type of its cache, but its size does, once a first request has run."""
        self.run_closed_loop([Request("first", [1] * 8, 1)], 1)
        size = self.pipeline.get_metrics().kv_cache_size_in_bytes
        config = config_from_hf(read_json(self.settings.hf_folder / "config.json"), str(self.settings.hf_folder))
        per_token = config.kv_bytes_per_token(2 if self.settings.dtype == "bfloat16" else 4)
        expected = self.scheduler.num_kv_blocks * _BLOCK_TOKENS * per_token
        if size != expected:
            raise UserError(
                f"contender openvino: its key-value cache has {size} bytes, {expected} would be {self.settings.dtype}; "
                "this version does not keep to KV_CACHE_PRECISION"
            )

    def describe(self) -> dict:
        metrics = self.pipeline.get_metrics()
        return {
            "version": version("openvino-genai"),
            "openvino": ov.get_version(),
            "dtype": self.settings.dtype,
            "kv_cache_dtype": self.settings.dtype,
            "threads": self.settings.threads,
            "properties": {name: str(value) for name, value in self.properties.items()},
            "max_batch_tokens": self.scheduler.max_num_batched_tokens,
            "max_sequences": self.scheduler.max_num_seqs,
            "kv_cache_bytes": metrics.kv_cache_size_in_bytes,
            "prefix_cache": self.scheduler.enable_prefix_caching,
            "split_fuse": self.scheduler.dynamic_split_fuse,
        }

    def add(self, request: Request) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = request.output_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = ov.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        handle = self.pipeline.add_request(next(self._numbers), ids, config)
        self._running[request.request_id] = (handle, request.output_tokens)

    def step(self) -> list[tuple[str, list[int], bool]]:
        self.pipeline.step()
        outputs = []
        for request_id, (handle, missing) in list(self._running.items()):
            token_ids: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    token_ids += output.generated_ids
            if not token_ids:
                continue
            missing -= len(token_ids)
            if missing > 0:
                self._running[request_id] = (handle, missing)
            else:
                del self._running[request_id]
            outputs.append((request_id, token_ids, missing <= 0))
        return outputs

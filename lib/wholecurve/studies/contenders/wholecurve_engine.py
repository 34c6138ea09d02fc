"""Our own engine as a contender: continuous batching, stepped by the client."""

import torch

from wholecurve import __version__
from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.load import DTYPES
from wholecurve.kernels import decode_attention, rms_norm
from wholecurve.models.folder import read_folder
from wholecurve.models.llama import build_llama
from wholecurve.studies.contenders.base import ContenderSettings, SteppedContender
from wholecurve.studies.workloads import Request


class WholecurveContender(SteppedContender):
    """`wholecurve.engine.Engine` on the CPU."""

    def __init__(self, settings: ContenderSettings):
        torch.set_num_threads(settings.threads)
        self.settings = settings
        model = build_llama(*read_folder(settings.hf_folder), DTYPES[settings.dtype], "cpu")
        self.engine = Engine(
            model,
            cache_tokens=settings.cache_tokens,
            max_batch_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
        )

    def describe(self) -> dict:
        scheduler, device = self.engine.scheduler, self.engine.model.device
        return {
            "version": __version__,
            "torch": torch.__version__,
            "dtype": str(self.engine.model.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(self.engine.runner.cache.keys[0].dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "max_batch_tokens": scheduler.max_batch_tokens,
            "max_sequences": scheduler.max_sequences,
            "cache_tokens": self.engine.pool.num_blocks * self.engine.pool.block_size,
            "prefix_cache": False,
            "forms": {
                "decode_attention": decode_attention.form_for(device),
                "rms_norm": rms_norm.form_for(device),
            },
        }

    def add(self, request: Request) -> None:
        params = SamplingParams(max_new_tokens=request.output_tokens, ignore_eos=True)
        self.engine.add(request.request_id, request.prompt_ids, params)

    def step(self) -> list[tuple[str, list[int], bool]]:
        return [(o.request_id, o.token_ids, o.finish_reason is not None) for o in self.engine.step()]

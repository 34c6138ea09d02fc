"""Our own engine as a contender: continuous batching, stepped by the client."""

import torch

from wholecurve import __version__
from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.load import DTYPES
from wholecurve.errors import UserError
from wholecurve.kernels import decode_attention, rms_norm
from wholecurve.models.folder import read_folder
from wholecurve.models.llama import build_llama
from wholecurve.models.native.llama import build_native_llama, unsupported
from wholecurve.studies.contenders.base import ContenderSettings, SteppedContender
from wholecurve.studies.contenders.options import WholecurveOptions
from wholecurve.studies.request import Request


class WholecurveContender(SteppedContender):
    """`wholecurve.engine.Engine` on the CPU."""

    def __init__(self, settings: ContenderSettings):
        torch.set_num_threads(settings.threads)
        options = WholecurveOptions.model_validate(settings.options)
        model, self.form = _build(settings, options.form)
        self.engine = Engine(
            model,
            cache_tokens=settings.cache_tokens,
            block_size=options.block_size,
            max_batch_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
            overlap=options.overlap,
        )

    def describe(self) -> dict:
        engine, device = self.engine, torch.device(self.engine.model.device)
        (pool,) = engine.cache.pools
        (cache,) = engine.runner.caches
        forms = {"model": self.form}
        if self.form == "torch":
            forms["decode_attention"] = decode_attention.form_for(device)
            forms["rms_norm"] = rms_norm.form_for(device)
        return {
            "version": __version__,
            "torch": torch.__version__,
            "dtype": str(engine.model.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(cache.keys[0].dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "max_batch_tokens": engine.scheduler.max_batch_tokens,
            "max_sequences": engine.scheduler.max_sequences,
            "block_size": pool.block_size,
            "cache_tokens": pool.num_blocks * pool.block_size,
            "overlap": engine.overlap,
            "prefix_cache": engine.cache.settings.prefix_cache,
            "forms": forms,
        }

    def add(self, request: Request) -> None:
        params = SamplingParams(max_new_tokens=request.output_tokens, ignore_eos=True)
        self.engine.add(request.request_id, request.prompt_ids, params)

    def step(self) -> list[tuple[str, list[int], bool]]:
        outputs = self.engine.step()
        if any(output.num_cached for output in outputs):
            raise UserError("contender wholecurve: a request took tokens from a prefix cache")
        return [(o.request_id, o.token_ids, o.finish_reason is not None) for o in outputs]


def _build(settings: ContenderSettings, form: str) -> tuple[object, str]:
    """The model and the name of its form: "native" is one C++ call per step, "torch" a graph of torch operators."""
    config, weights = read_folder(settings.hf_folder)
    dtype = DTYPES[settings.dtype]
    reason = unsupported(config, dtype) if form != "torch" else None
    if form == "native" and reason is not None:
        raise UserError(f"contender wholecurve: the native form cannot run: {reason}")
    if form == "torch" or reason is not None:
        return build_llama(config, weights, dtype, "cpu"), "torch"
    return build_native_llama(config, weights, dtype, settings.threads), "native"

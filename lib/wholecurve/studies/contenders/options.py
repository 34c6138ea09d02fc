"""The settings that a plan may give to one engine. What a plan does not name keeps the default that stands here."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wholecurve.studies.wrong_setting import wrong_setting

Positive = Annotated[int, Field(ge=1)]


class Options(BaseModel):
    """What every engine takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: Positive | None = None  # the study's number of threads when not given


class PinnedOptions(Options):
    """Engines whose threads are OpenMP's: `pin_threads` binds each of them to a core (OMP_PROC_BIND=close)."""

    pin_threads: bool = False


class WholecurveOptions(PinnedOptions):
    """`wholecurve.engine.Engine`."""

    form: Literal["auto", "native", "torch"] = "auto"  # of the model; auto: native where it can be built
    block_size: Positive = 16
    overlap: bool = False


class TransformersOptions(PinnedOptions):
    """`model.generate` on static batches."""

    attention: Literal["sdpa", "eager"] = "sdpa"


class OpenVinoOptions(Options):
    """`ContinuousBatchingPipeline`. `pin_threads` is ENABLE_CPU_PINNING; None leaves it to OpenVINO."""

    pin_threads: bool | None = None
    hyper_threading: bool | None = None  # ENABLE_HYPER_THREADING
    split_fuse: bool = True  # chunked prefill beside decode rows; False runs a prompt whole, before them
    num_streams: Positive | None = None


class VllmOptions(Options):
    """vLLM's engine, stepped in its own process."""

    block_size: Positive | None = None  # None: vLLM's own choice for the CPU
    compile: Literal["off", "default", "max-autotune"] = "default"  # torch.compile through Inductor, as vLLM does
    max_batch_tokens: Positive | None = None  # token budget of a step; the study's when not given
    openmp: Literal["intel", "gnu"] = "intel"  # vLLM's manual asks for Intel's; its default takes torch's libgomp


class LlamaCppOptions(PinnedOptions):
    """llama.cpp through `llama_decode`, prompts and decode rows in one batch."""

    ubatch_tokens: Positive = 512  # tokens that one graph computes
    flash_attention: bool = True
    kv_cache: Literal["auto", "f16", "bf16", "f32"] = "auto"  # auto: f16 in a bfloat16 study, f32 in a float32 one
    unified_cache: bool = False  # one buffer for all sequences instead of one each
    repack: bool = True  # let ggml lay weights out for the CPU's own kernels where it has some


OPTIONS: dict[str, type[Options]] = {
    "wholecurve": WholecurveOptions,
    "transformers": TransformersOptions,
    "openvino": OpenVinoOptions,
    "vllm": VllmOptions,
    "llama.cpp": LlamaCppOptions,
}


def parse_options(engine: str, settings: dict[str, Any]) -> Options:
    """Validated settings; ValueError in one line names the setting and what would be right."""
    options = OPTIONS[engine]
    try:
        return options.model_validate(settings)
    except ValidationError as error:
        raise ValueError(wrong_setting(error, options, f"engine {engine}")) from None

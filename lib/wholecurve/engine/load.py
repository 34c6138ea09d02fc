"""From a model's name to a model that is ready to run."""

import sys

import torch

from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import Llama, build_llama
from wholecurve.models.native import NativeLlama, build_native_llama, unsupported
from wholecurve.models.resolve import ModelFiles

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def default_device() -> str:
    """ "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def build_model(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype,
    device: str = "cpu",
    where: str = "checkpoint",
    threads: int | None = None,
) -> Llama | NativeLlama:
    """The fastest form of a checkpoint that this machine has: on a CPU the native one, else plain torch and Triton.

    threads: of the native form, None for torch's number. Says on stderr when a CPU has to do without the native form.
    """
    if device == "cpu":
        reason = unsupported(config, dtype)
        if reason is None:
            return build_native_llama(config, weights, dtype, threads, where)
        print(f"wholecurve: the plain torch form runs, several times slower: {reason}", file=sys.stderr)
    return build_llama(config, weights, dtype, device, where)


def load_model(
    files: ModelFiles, dtype: str = "bfloat16", device: str | None = None, threads: int | None = None
) -> Llama | NativeLlama:
    """Read a checkpoint and build its model in `dtype` on `device`."""
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}; supported: {', '.join(DTYPES)}")
    config, weights = files.read()
    where = str(files.gguf or files.folder)
    return build_model(config, weights, DTYPES[dtype], device or default_device(), where, threads)

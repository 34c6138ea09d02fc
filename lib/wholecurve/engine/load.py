"""From a model's name to an engine that is ready."""

import torch

from wholecurve.errors import UserError
from wholecurve.models.llama import Llama, build_llama
from wholecurve.models.resolve import ModelFiles

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def default_device() -> str:
    """ "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(files: ModelFiles, dtype: str = "bfloat16", device: str | None = None) -> Llama:
    """Read a checkpoint and build its model in `dtype` on `device`."""
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}; supported: {', '.join(DTYPES)}")
    config, weights = files.read()
    where = str(files.gguf or files.folder)
    return build_llama(config, weights, DTYPES[dtype], device or default_device(), where)

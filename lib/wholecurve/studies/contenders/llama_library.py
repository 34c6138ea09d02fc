"""The C interface to llama.cpp (peers/llama_shim.cpp) as Python objects: a model, and contexts that decode batches."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wholecurve.errors import UserError

GGML_TYPE = {"f32": 0, "f16": 1, "bf16": 30}
_NUMBERS = (
    "cache_tokens",
    "sequence_tokens",
    "batch_tokens",
    "ubatch_tokens",
    "max_sequences",
    "threads",
    "vocab_size",
)


@dataclass(frozen=True)
class ContextSettings:
    """How a context is opened."""

    cache_tokens: int
    batch_tokens: int  # most tokens of one `decode`
    ubatch_tokens: int
    max_sequences: int
    threads: int
    flash_attention: bool
    unified_cache: bool
    kv_cache: str  # a key of GGML_TYPE


def open_library(path: Path) -> ctypes.CDLL:
    """The compiled interface with its argument types."""
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.wc_load.argtypes, library.wc_load.restype = [ctypes.c_char_p, number], pointer
    library.wc_open.argtypes, library.wc_open.restype = [pointer, *[number] * 9], pointer
    library.wc_decode.argtypes, library.wc_decode.restype = [pointer, number, *[pointer] * 5], number
    library.wc_remove.argtypes, library.wc_remove.restype = [pointer, number], number
    library.wc_number.argtypes, library.wc_number.restype = [pointer, number], number
    library.wc_system.argtypes, library.wc_system.restype = [], ctypes.c_char_p
    library.wc_describe.argtypes, library.wc_describe.restype = [pointer, ctypes.c_char_p, number], None
    return library


class LlamaModel:
    """A GGUF checkpoint in memory; it stays there as long as the process."""

    def __init__(self, library: ctypes.CDLL, gguf: Path, repack: bool):
        self.library = library
        self.handle = library.wc_load(str(gguf).encode(), int(repack))
        if not self.handle:
            raise UserError(f"{gguf}: llama.cpp cannot load it; what it says of it is in the log")

    def describe(self) -> str:
        """Architecture, size and type of the weights, in llama.cpp's words."""
        text = ctypes.create_string_buffer(256)
        self.library.wc_describe(self.handle, text, len(text))
        return text.value.decode()


class LlamaContext:
    """A key-value cache with its compute buffers."""

    def __init__(self, model: LlamaModel, settings: ContextSettings):
        self.library, self.settings = model.library, settings
        kind = GGML_TYPE[settings.kv_cache]
        self.handle = self.library.wc_open(
            model.handle,
            settings.cache_tokens,
            settings.batch_tokens,
            settings.ubatch_tokens,
            settings.max_sequences,
            settings.threads,
            int(settings.flash_attention),
            int(settings.unified_cache),
            kind,
            kind,
        )
        if not self.handle:
            raise UserError(f"llama.cpp refuses a context of {settings}; what it says of it is in the log")

    def numbers(self) -> dict[str, int]:
        """The settings that the context has in effect."""
        return {name: self.library.wc_number(self.handle, i) for i, name in enumerate(_NUMBERS)}

    def decode(self, tokens: list[int], positions: list[int], sequences: list[int], wanted: list[bool]) -> list[int]:
        """Run one batch of T tokens; the greedy next tokens after those that are `wanted`, in order.

        All four lists have T entries, T at most `batch_tokens`. UserError when llama.cpp refuses the batch.
        """
        arrays = [np.array(values, dtype=np.int32) for values in (tokens, positions, sequences)]
        flags = np.array(wanted, dtype=np.int8)
        chosen = np.empty(max(1, int(flags.sum())), dtype=np.int32)
        code = self.library.wc_decode(
            self.handle, len(tokens), *[array.ctypes.data for array in arrays], flags.ctypes.data, chosen.ctypes.data
        )
        if code:
            reason = "the cache has no room" if code == 1 else f"llama_decode returned {code}"
            raise UserError(f"llama.cpp cannot run a batch of {len(tokens)} tokens: {reason}")
        return chosen[: int(flags.sum())].tolist()

    def remove(self, sequence: int) -> None:
        """Forget a sequence: its cells are free."""
        if self.library.wc_remove(self.handle, sequence):
            raise UserError(f"llama.cpp cannot remove sequence {sequence} from its cache")

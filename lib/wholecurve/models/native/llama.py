"""A Llama-family decoder on the CPU with one call per step: packed weights, fused phases, paged attention, in C++.

It stands where `wholecurve.models.llama.Llama` stands: `model(batch, caches)`, the same specs, the same meaning. The
bits of a row do not depend on the other rows: every sum has one order, see tiles.hpp and attention.hpp.
"""

import ctypes
import os
import threading
from dataclasses import dataclass

import torch

from wholecurve.errors import UserError
from wholecurve.kernels.rope import rope_tables
from wholecurve.models.batch import CacheKind, ForwardBatch
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama_weights import take_weights
from wholecurve.models.native.library import COLUMNS, ELEMENTS, LANES, group_of, load

BLOCK_SIZES = (16, 32, 64)
MOST_HEAD_DIM = 256
# Part of work.hpp, in its order
PARTS = ("embedding", "norm", "qkv", "attention", "output", "gate_up", "down", "head", "waiting")
_HUGE_PAGE, _MADV_HUGEPAGE = 2**21, 14


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why this machine or this model has no native form, None where it has one."""
    if config.head_dim > MOST_HEAD_DIM:
        return f"head_dim {config.head_dim} is above {MOST_HEAD_DIM}"
    if dtype not in ELEMENTS:
        return f"it has no {str(dtype).removeprefix('torch.')}"
    if load(dtype) is None:
        return "no C++ compiler, or WHOLECURVE_NATIVE=0"
    return None


@dataclass(frozen=True)
class NativeKVSpec:
    """Keys and values in the layout of model.hpp: per layer one flat tensor each, a block after the other."""

    config: ModelConfig
    window: int | None = None
    kind: CacheKind = "full"

    def entry_bytes(self, dtype: torch.dtype) -> int:
        config = self.config
        width = config.head_dim + _padded(config.head_dim, LANES)
        return config.num_layers * config.num_kv_heads * width * dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> "NativeCache":
        if block_size not in BLOCK_SIZES:
            raise UserError(f"block_size is {block_size}; the native CPU form takes {', '.join(map(str, BLOCK_SIZES))}")
        config = self.config
        rows = config.num_kv_heads * block_size
        widths = (config.head_dim, _padded(config.head_dim, LANES))
        sizes = [num_blocks * rows * width for width in widths]
        memory = _huge_pages(config.num_layers * sum(sizes), dtype).zero_()
        parts = [part.view(num_blocks, -1) for part in memory.split(sizes * config.num_layers)]
        return NativeCache(parts[::2], parts[1::2], block_size)

    def copy_block(self, cache: "NativeCache", source: int, target: int) -> None:
        for tensor in cache.keys + cache.values:
            tensor[target] = tensor[source]


@dataclass
class NativeCache:
    """Keys and values, one tensor [num_blocks, elements of a block] per layer and kind."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    block_size: int

    def __post_init__(self) -> None:
        tensors = [tensor for pair in zip(self.keys, self.values) for tensor in pair]
        self.pointers = [tensor.data_ptr() for tensor in tensors]


class NativeLlama:
    """The packed model. Made by `build_native_llama`."""

    device = torch.device("cpu")

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, threads: int, tensors: list[torch.Tensor | None], memory
    ):
        self.config, self.dtype, self.threads = config, dtype, threads
        self._library, self._tensors, self._memory = load(dtype), tensors, memory
        self._lock = threading.Lock()  # a step has the threads and the buffers of the model for itself
        self._handles: dict[tuple[int, int], int] = {}  # by process, a forked one has no threads, and block size

    @property
    def cache_specs(self) -> tuple[NativeKVSpec, ...]:
        return (NativeKVSpec(self.config),)

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take, padding included; the rotary tables are none."""
        packed = self._memory.untyped_storage().data_ptr()
        others = [t for t in self._tensors[2:] if t is not None and t.untyped_storage().data_ptr() != packed]
        return self._memory.nbytes + sum(tensor.nbytes for tensor in others)

    def _handle(self, block_size: int) -> int:
        key = os.getpid(), block_size
        if key not in self._handles:
            c = self.config
            sizes = [_padded(c.hidden_size, COLUMNS), c.hidden_size, _padded(c.intermediate_size, LANES), c.num_heads]
            sizes += [c.num_kv_heads, c.head_dim, c.num_layers, c.vocab_size, block_size, self.threads]
            pointers = [None if tensor is None else tensor.data_ptr() for tensor in self._tensors]
            handle = self._library.create(
                (ctypes.c_int64 * len(sizes))(*sizes), c.rms_norm_eps, (ctypes.c_void_p * len(pointers))(*pointers)
            )
            self._handles[key] = handle
        return self._handles[key]

    def __call__(self, batch: ForwardBatch, caches: list[NativeCache]) -> torch.Tensor | None:
        """Logits [R, vocab_size] float32 of the rows that the batch asks for, and batch.argmax on the way.

        With batch.argmax_only there are no logits (None), which saves writing them.
        """
        return self._step(batch, caches, None)

    def timed(self, batch: ForwardBatch, caches: list[NativeCache]) -> dict[str, list[float]]:
        """Run a step and say where its time went: {part: [seconds of each thread]}, "waiting" for other threads too."""
        times = torch.zeros(self.threads, len(PARTS), dtype=torch.int64)
        self._step(batch, caches, times)
        return dict(zip(PARTS, (times.T / 1e9).tolist(), strict=True))

    def _step(self, batch: ForwardBatch, caches: list[NativeCache], times: torch.Tensor | None) -> torch.Tensor | None:
        (cache,), (group,) = caches, batch.groups
        table, rows = group.block_table, len(batch.logits_rows)
        batch.argmax = torch.empty(rows, dtype=torch.int64)
        logits = None if batch.argmax_only else torch.empty(rows, self.config.vocab_size, dtype=torch.float32)
        inputs = [
            batch.token_ids,
            batch.positions,
            batch.logits_rows,
            batch.cu_q,
            batch.context_lens,
            table,
            group.slots,
        ]
        if not all(tensor.dtype == torch.int64 and tensor.is_contiguous() for tensor in inputs):
            raise ValueError("the tensors of a batch must be int64 and contiguous")
        pointers = [tensor.data_ptr() for tensor in inputs]
        outputs = (logits, batch.argmax, times)
        pointers += [None if tensor is None else tensor.data_ptr() for tensor in outputs] + cache.pointers
        numbers = (len(batch.token_ids), len(batch.context_lens), rows, table.shape[1])
        arguments = (ctypes.c_int64 * 4)(*numbers), (ctypes.c_void_p * len(pointers))(*pointers)
        with self._lock:
            done = self._library.step(self._handle(cache.block_size), *arguments)
        if not done:
            raise ValueError("logits_rows of a batch must ascend, from 0 on and below the number of tokens")
        return logits

    def __del__(self) -> None:
        for (process, _), handle in getattr(self, "_handles", {}).items():
            if process == os.getpid():
                self._library.destroy(handle)


class _Packer:
    """Packs matrices one after the other into one block of memory."""

    def __init__(self, dtype: torch.dtype, elements: int):
        self.library, self.dtype = load(dtype), dtype
        self.memory, self.at = _huge_pages(elements, dtype), 0

    def matrix(self, source: torch.Tensor, order: torch.Tensor, inner: int) -> torch.Tensor:
        """Rows `order` of source [out, in] (−1: zeros), to [panels, inner / GROUP, 32, GROUP]."""
        order = torch.nn.functional.pad(order, (0, -len(order) % COLUMNS), value=-1).contiguous()
        source = source.to(self.dtype).contiguous()
        packed = self.memory[self.at : self.at + len(order) * inner]
        self.at += packed.numel()
        self.library.pack(source.data_ptr(), source.shape[1], order.data_ptr(), len(order), inner, packed.data_ptr())
        return packed


def _huge_pages(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory from a huge page's border on, in huge pages where the system gives them.

    They spare a look at the page table every 4 KiB; without them nothing changes but the speed.
    """
    whole = torch.empty(elements + _HUGE_PAGE // dtype.itemsize, dtype=dtype)
    skipped = (-whole.data_ptr() % _HUGE_PAGE) // dtype.itemsize
    memory = whole[skipped : skipped + elements]
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is not None and memory.nbytes >= _HUGE_PAGE:
        length = memory.nbytes // _HUGE_PAGE * _HUGE_PAGE
        madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return memory


def qkv_order(config: ModelConfig) -> torch.Tensor:
    """Rows of [q; k; v] as panels want them: 16 first and 16 second halves of rotated pairs, then the values."""
    half, heads = config.head_dim // 2, config.num_heads + config.num_kv_heads
    first = (torch.arange(heads)[:, None] * config.head_dim + torch.arange(half)).flatten()
    first = torch.nn.functional.pad(first, (0, -len(first) % LANES), value=-1)
    second = torch.where(first < 0, -1, first + half)
    rotated = torch.stack([first.view(-1, LANES), second.view(-1, LANES)], dim=1).flatten()
    values = torch.arange(heads * config.head_dim, (heads + config.num_kv_heads) * config.head_dim)
    return torch.cat([rotated, values])


def gate_up_order(config: ModelConfig) -> torch.Tensor:
    """Rows of [gate; up]: 16 gates, then their 16 ups."""
    gates = torch.arange(config.intermediate_size)
    gates = torch.nn.functional.pad(gates, (0, -len(gates) % LANES), value=-1)
    ups = torch.where(gates < 0, -1, gates + config.intermediate_size)
    return torch.stack([gates.view(-1, LANES), ups.view(-1, LANES)], dim=1).flatten()


def build_native_llama(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype,
    threads: int | None = None,
    where: str = "checkpoint",
) -> NativeLlama:
    """A NativeLlama with `weights` (Hugging Face names, [out_features, in_features]) cast to `dtype` and packed.

    threads: None for torch's number; at most 64. UserError as `build_llama`; the caller has asked `unsupported` first.
    """
    c, group = config, group_of(dtype)
    hidden, inter, wide = _padded(c.hidden_size, COLUMNS), _padded(c.intermediate_size, LANES), c.num_heads * c.head_dim
    found = take_weights(config, weights, where)
    outputs = torch.arange(c.hidden_size)
    panels = _padded(len(outputs), COLUMNS)
    qkv, gate_up, vocabulary = qkv_order(c), gate_up_order(c), torch.arange(c.vocab_size)
    per_layer = _padded(len(qkv), COLUMNS) * hidden + panels * wide + len(gate_up) * hidden + panels * inter
    packer = _Packer(dtype, c.num_layers * per_layer + _padded(c.vocab_size, COLUMNS) * hidden)
    assert wide % group == 0

    def vector(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tensor.to(dtype).float(), (0, hidden - c.hidden_size)).contiguous()

    cos, sin = rope_tables(c.head_dim, c.rope_theta, c.max_position, torch.float32, "cpu")
    embedding = None if c.tie_word_embeddings else found.embedding.to(dtype).contiguous()
    tensors = [cos.contiguous(), sin.contiguous(), vector(found.norm), embedding]
    tensors.append(packer.matrix(found.head, vocabulary, hidden))
    for layer in found.layers:
        tensors += [
            vector(layer.attention_norm),
            packer.matrix(torch.cat(layer.qkv), qkv, hidden),
            packer.matrix(layer.output, outputs, wide),
            vector(layer.mlp_norm),
            packer.matrix(torch.cat(layer.gate_up), gate_up, hidden),
            packer.matrix(layer.down, outputs, inter),
        ]
    return NativeLlama(c, dtype, threads or torch.get_num_threads(), tensors, packer.memory)

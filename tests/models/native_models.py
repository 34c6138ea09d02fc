"""Small random models in their native form, sequences over a paged cache, and what the C++ has to pass in every form.

V vocabulary, T tokens.
"""

import functools
import itertools

import pytest
import torch
from tiny_checkpoints import error_of_spread, largest_error, logits_by_chunks

from wholecurve.models.batch import ForwardBatch, GroupBatch
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import build_llama
from wholecurve.models.native import build_native_llama
from wholecurve.models.native.library import load
from wholecurve.models.native.llama import NativeCache

DTYPES = (torch.float32, torch.bfloat16)
needs_native = pytest.mark.skipif(load(torch.float32) is None, reason="no C++ compiler here, or WHOLECURVE_NATIVE=0")
# float32: measured against float64 at most 3.3e-6 of the largest logit, and 2.9e-6 for the plain form.
FLOAT32_ERROR = 6e-6
# bfloat16: measured at most 1.4 %, and 2.2 % for the plain form, which also rounds the residual stream.
BFLOAT16_ERROR = 0.02

# Vectors within one head and vectors that cross heads, groups of 3 and of more than 12 heads, paddings of every kind
SHAPES = {
    "narrow": {"heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 40, "inter": 56, "vocabulary": 122},
    "wide": {"heads": 14, "kv_heads": 1, "head_dim": 64, "hidden": 64, "inter": 100, "vocabulary": 128, "tied": True},
    "one layer": {"heads": 4, "kv_heads": 4, "head_dim": 32, "hidden": 72, "inter": 16, "vocabulary": 66, "layers": 1},
}
LENGTH, STREAMS = 200, 4


@functools.cache
def tiny(shape: str) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """(config, weights) whose numbers bfloat16 holds exactly; sharp attention, norms far from 1, an eps that shows.

    The second half of the head's rows repeats the first: the largest logit is always there twice.
    """
    sizes = {"layers": 2, "tied": False, **SHAPES[shape]}
    hidden, inter, vocabulary, head_dim = (sizes[name] for name in ("hidden", "inter", "vocabulary", "head_dim"))
    heads, kv_heads, layers, tied = (sizes[name] for name in ("heads", "kv_heads", "layers", "tied"))
    config = ModelConfig(
        vocabulary, hidden, inter, layers, heads, kv_heads, head_dim, 0.02, 500.0, LENGTH + 8, tied, None, (7,)
    )
    generator = torch.Generator().manual_seed(len(shape))

    def matrix(rows: int, columns: int, scale: float = 1.5) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * scale / columns**0.5).bfloat16().float()

    def norm() -> torch.Tensor:
        return (torch.rand(hidden, generator=generator) + 0.5).bfloat16().float()

    embedding = matrix(vocabulary // 2, hidden, 1.5 if tied else hidden**0.5).repeat(2, 1)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": norm()}
    if not tied:
        weights["lm_head.weight"] = matrix(vocabulary // 2, hidden).repeat(2, 1)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": norm(),
            f"{prefix}.post_attention_layernorm.weight": norm(),
            f"{prefix}.self_attn.q_proj.weight": matrix(heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
            f"{prefix}.mlp.gate_proj.weight": matrix(inter, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(inter, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, inter),
        }
    return config, weights


@functools.cache
def native(shape: str, dtype: torch.dtype, threads: int = 1):
    """The native form of a shape."""
    return build_native_llama(*tiny(shape), dtype, threads)


@functools.cache
def streams(shape: str) -> list[list[int]]:
    """Token ids of STREAMS sequences, LENGTH each."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, tiny(shape)[0].vocab_size, (STREAMS, LENGTH), generator=generator).tolist()


@functools.cache
def exact_logits(shape: str) -> list[torch.Tensor]:
    """Logits [LENGTH, V] of each stream, by plain torch in float64."""
    model = build_llama(*tiny(shape), torch.float64)
    return [logits_by_chunks(model, stream, [LENGTH], block_size=16).double() for stream in streams(shape)]


class PagedSequences:
    """Sequences of one model over one cache.

    Their blocks lie in random order, tables are wider than need be with -1 there, the cache is full of `fill`, and so
    is a block before its first: where a block -1 would be.
    """

    def __init__(self, model, count: int = STREAMS, block_size: int = 16, fill: float = torch.nan, seed: int = 0):
        (spec,) = model.cache_specs
        self.model, self.block_size = model, block_size
        width = -(-(LENGTH + 8) // block_size)
        order = torch.randperm(count * width, generator=torch.Generator().manual_seed(seed))
        self.table = torch.nn.functional.pad(order.view(count, width), (0, 2), value=-1)
        guarded = spec.allocate(count * width + 1, block_size, model.dtype, "cpu")
        for tensor in guarded.keys + guarded.values:
            tensor.fill_(fill)
        self.cache = NativeCache([t[1:] for t in guarded.keys], [t[1:] for t in guarded.values], block_size)

    def batch(self, chunks: list[tuple[int, int, list[int]]], rows: list[int] | str = "all") -> ForwardBatch:
        """chunks: (sequence, position of its first token, token ids). rows: of the logits; "all" of them, or "last"."""
        sequences = torch.tensor([sequence for sequence, _, _ in chunks], dtype=torch.int64)
        counts = torch.tensor([len(tokens) for _, _, tokens in chunks], dtype=torch.int64)
        starts = torch.tensor([start for _, start, _ in chunks], dtype=torch.int64)
        cu_q, ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)), starts + counts
        positions = torch.arange(int(cu_q[-1])) + (starts - cu_q[:-1]).repeat_interleave(counts)
        of_token = self.table[sequences.repeat_interleave(counts), positions // self.block_size]
        used = torch.arange(self.table.shape[1]) * self.block_size < ends[:, None]
        table = torch.where(used, self.table[sequences], -1)
        named = {"all": torch.arange(int(cu_q[-1])), "last": cu_q[1:] - 1}
        return ForwardBatch(
            token_ids=torch.tensor([token for _, _, tokens in chunks for token in tokens], dtype=torch.int64),
            positions=positions,
            logits_rows=named[rows] if isinstance(rows, str) else torch.tensor(rows, dtype=torch.int64),
            cu_q=cu_q,
            context_lens=ends,
            groups=[GroupBatch(table, of_token * self.block_size + positions % self.block_size)],
            num_decodes=0,
            max_q=int(counts.max()) if len(chunks) else 1,
        )

    def logits(self, chunks: list[tuple[int, int, list[int]]], rows: list[int] | str = "all") -> torch.Tensor:
        """Logits [rows, V] of a step, whose argmax is checked on the way."""
        batch = self.batch(chunks, rows)
        logits = self.model(batch, [self.cache])
        assert logits.isfinite().all(), "a logit is not finite"
        assert torch.equal(batch.argmax, lowest_of_largest(logits)), "not the lowest id of the largest logit"
        return logits


def lowest_of_largest(logits: torch.Tensor) -> torch.Tensor:
    """[R] int64, the lowest id of each row's largest logit, -1 where that is -inf."""
    largest = logits.amax(dim=1, keepdim=True)
    lowest = torch.where(logits == largest, torch.arange(logits.shape[1]), logits.shape[1]).amin(dim=1)
    return lowest.where(largest[:, 0] > -torch.inf, -1)


def check_forms(shape: str, dtype: torch.dtype, threads: int = 2) -> None:
    """AssertionError unless the library in use gives right logits with the same bits in both ways of a step.

    A short form of what the other files ask in full, for libraries that are compiled some other way.
    """
    config, weights = tiny(shape)
    model, tokens = build_native_llama(config, weights, dtype, threads), streams(shape)
    lengths, exact = (130, 1, 17, 62), exact_logits(shape)
    paged = PagedSequences(model, block_size=64 if shape == "wide" else 16)
    together = paged.logits([(i, 0, tokens[i][:length]) for i, length in enumerate(lengths)])
    parts = together.split(lengths)
    for part, of_stream in zip(parts, exact, strict=True):
        expected = of_stream[: len(part)]
        if dtype == torch.float32:
            assert largest_error(part, expected) < FLOAT32_ERROR, "logits are wrong"
        else:
            assert error_of_spread(part, expected) < BFLOAT16_ERROR, "logits are wrong"
    apart = PagedSequences(model, block_size=32, fill=torch.inf, seed=1)
    for i, starts in enumerate([(0, 81, 83, 84, 130), (0, 1), (0, 3, 17), (0, 62)]):
        for start, end in itertools.pairwise(starts):
            logits = apart.logits([(i, start, tokens[i][start:end])])
            assert torch.equal(logits, parts[i][start:end]), "bits depend on the batch"
    following = [(i, length, tokens[i][length : length + 1 + i]) for i, length in enumerate(lengths)]
    decoded = paged.logits(following)
    rejected = [(i, start, [*known, 5, 6]) for i, start, known in following]
    rows = [0, 3, 4, 7, 8, 9, 12, 13, 14, 15]
    assert torch.equal(apart.logits(rejected, rows), decoded), "bits depend on drafts"
    again = [(i, start + len(known), tokens[i][start + len(known) :][:30]) for i, start, known in following]
    continued = apart.logits(again, "last")
    for i, chunk in enumerate(again):
        assert torch.equal(paged.logits([chunk], "last")[0], continued[i]), "bits depend on what was taken back"

"""Llama-family decoder (Llama, SmolLM2, …) as plain modules over `kernels/`.

Dimensions: T tokens, H query heads, G key-value heads, D head size.
"""

import torch
from torch import nn

from wholecurve.kernels.decode_attention import decode_attention, plan_decode_attention
from wholecurve.kernels.gated_activation import swiglu
from wholecurve.kernels.kv_store import store_kv
from wholecurve.kernels.prefill_attention import plan_prefill_attention, prefill_attention
from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rope import rope, rope_tables
from wholecurve.models.batch import ForwardBatch, KVCache, KVSpec
from wholecurve.models.config import ModelConfig
from wholecurve.models.linear import linear
from wholecurve.models.llama_weights import take_weights


class Attention(nn.Module):
    """Grouped-query attention over a paged cache; q, k and v come from one matrix."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.config, self.layer = config, layer
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = nn.Parameter(torch.empty(heads * config.head_dim, config.hidden_size))
        self.output = nn.Parameter(torch.empty(config.hidden_size, config.num_heads * config.head_dim))

    def forward(self, x: torch.Tensor, batch: ForwardBatch, cache: KVCache, cos, sin) -> torch.Tensor:
        c, tokens = self.config, x.shape[0]
        heads = linear(x, self.qkv).view(tokens, -1, c.head_dim)  # [T, H + 2G, D]
        rotated = rope(heads[:, : c.num_heads + c.num_kv_heads], batch.positions, cos, sin)
        q, k = rotated[:, : c.num_heads], rotated[:, c.num_heads :]  # [T, H, D], [T, G, D]
        v = heads[:, c.num_heads + c.num_kv_heads :]  # [T, G, D]
        keys, values = cache.keys[self.layer], cache.values[self.layer]
        store_kv(k, v, keys, values, batch.groups[0].slots)
        return linear(self._attend(q, keys, values, batch), self.output)

    def _attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        scale, parts = self.config.head_dim**-0.5, []
        split = batch.num_decodes * batch.decode_queries
        if split:
            table, lengths, plan = batch.plans["decode"]
            rows = q[:split] if batch.decode_queries == 1 else q[:split].unflatten(0, (-1, batch.decode_queries))
            parts.append(decode_attention(rows, keys, values, table, lengths, scale, plan=plan).view(split, -1))
        if split < q.shape[0]:
            table, lengths, cu_q, plan = batch.plans["prefill"]
            chunks = (table, lengths, cu_q, scale)
            out = prefill_attention(q[split:], keys, values, *chunks, plan=plan, max_q=batch.max_q)
            parts.append(out.view(q.shape[0] - split, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class MLP(nn.Module):
    """SwiGLU feed-forward; gate and up come from one matrix."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, config.hidden_size))
        self.down = nn.Parameter(torch.empty(config.hidden_size, config.intermediate_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(swiglu(linear(x, self.gate_up)), self.down)


class DecoderLayer(nn.Module):
    """One layer. The residual stream travels beside the normed input, so that the addition fuses with the next norm."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.attention_norm = nn.Parameter(torch.empty(config.hidden_size))
        self.mlp_norm = nn.Parameter(torch.empty(config.hidden_size))
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(self, x, residual, batch: ForwardBatch, cache: KVCache, cos, sin):
        if residual is None:
            residual, x = x, rms_norm(x, self.attention_norm, self.eps)
        else:
            x, residual = rms_norm(x, self.attention_norm, self.eps, residual)
        x = self.attention(x, batch, cache, cos, sin)
        x, residual = rms_norm(x, self.mlp_norm, self.eps, residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    """Decoder with paged cache. `forward` returns logits [R, vocab_size] of the rows that the batch asks for."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size))
        self.head = self.embedding if config.tie_word_embeddings else nn.Parameter(torch.empty_like(self.embedding))
        self.cos = self.sin = None  # [max_position, D / 2], made by build_llama in float32

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def cache_specs(self) -> tuple[KVSpec, ...]:
        return (KVSpec(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim),)

    def forward(self, batch: ForwardBatch, caches: list[KVCache]) -> torch.Tensor:
        (cache,) = caches
        _plan_attention(batch, cache.keys[0].shape[1])
        x, residual = self.embedding[batch.token_ids], None  # [T, hidden_size]
        for layer in self.layers:
            x, residual = layer(x, residual, batch, cache, self.cos, self.sin)
        rows = batch.logits_rows
        x, _ = rms_norm(x[rows], self.norm, self.config.rms_norm_eps, residual[rows])
        return linear(x, self.head)


def _plan_attention(batch: ForwardBatch, block_size: int) -> None:
    """What all layers of the step share is worked out once: rows that decode, then chunks, with a plan each."""
    first, queries = batch.num_decodes, batch.decode_queries
    table, lengths = batch.groups[0].block_table, batch.context_lens
    if first:
        decode = (table[:first], lengths[:first])
        batch.plans["decode"] = (*decode, plan_decode_attention(*decode, block_size, num_queries=queries))
    if first < len(lengths):
        cu_q = (batch.cu_q[first:] - first * queries).to(table.device, non_blocking=True)
        prefill = (table[first:], lengths[first:], cu_q)
        batch.plans["prefill"] = (*prefill, plan_prefill_attention(*prefill, block_size))


def build_llama(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    where: str = "checkpoint",
) -> Llama:
    """A Llama with `weights` (Hugging Face names, [out_features, in_features]) cast to `dtype` on `device`.

    Raises UserError naming `where` and the tensor when one is missing, left over, of the wrong shape or not of numbers
    that can be cast.
    """
    found = take_weights(config, weights, where)

    def parameter(*tensors: torch.Tensor) -> nn.Parameter:
        joined = torch.cat([tensor.to(dtype) for tensor in tensors]) if len(tensors) > 1 else tensors[0].to(dtype)
        return nn.Parameter(joined.to(device).contiguous(), requires_grad=False)

    with torch.device("meta"):
        model = Llama(config)
    model.embedding = parameter(found.embedding)
    for layer, given in zip(model.layers, found.layers, strict=True):
        layer.attention_norm, layer.mlp_norm = parameter(given.attention_norm), parameter(given.mlp_norm)
        layer.attention.qkv, layer.attention.output = parameter(*given.qkv), parameter(given.output)
        layer.mlp.gate_up, layer.mlp.down = parameter(*given.gate_up), parameter(given.down)
    model.norm = parameter(found.norm)
    model.head = model.embedding if config.tie_word_embeddings else parameter(found.head)
    tables = rope_tables(config.head_dim, config.rope_theta, config.max_position, torch.float32, device)
    model.cos, model.sin = tables
    return model

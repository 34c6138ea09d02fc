"""Llama-family decoder (Llama, SmolLM2, …) as plain modules over `kernels/`.

Dimensions: T tokens, H query heads, G key-value heads, D head size.
"""

import torch
from torch import nn

from wholecurve.errors import UserError
from wholecurve.kernels.decode_attention import decode_attention, plan_decode_attention
from wholecurve.kernels.gated_activation import swiglu
from wholecurve.kernels.kv_store import store_kv
from wholecurve.kernels.prefill_attention import plan_prefill_attention, prefill_attention
from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rope import rope, rope_tables
from wholecurve.models.batch import ForwardBatch, KVCache
from wholecurve.models.config import ModelConfig
from wholecurve.models.linear import linear


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
        store_kv(k, v, keys, values, batch.slots)
        out = self._attend(q, keys, values, batch)
        return linear(out.view(tokens, -1), self.output)

    def _attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        scale, split = self.config.head_dim**-0.5, batch.num_decodes
        parts = []
        if split:
            decode = (batch.decode_block_table, batch.decode_context_lens)
            parts.append(decode_attention(q[:split], keys, values, *decode, scale, plan=batch.decode_plan))
        if split < q.shape[0]:
            prefill = (batch.prefill_block_table, batch.prefill_context_lens, batch.prefill_cu_q)
            parts.append(prefill_attention(q[split:], keys, values, *prefill, scale, plan=batch.prefill_plan))
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

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        self._plan_attention(batch, cache.keys[0].shape[1])
        x, residual = self.embedding[batch.token_ids], None  # [T, hidden_size]
        for layer in self.layers:
            x, residual = layer(x, residual, batch, cache, self.cos, self.sin)
        rows = batch.logits_rows
        x, _ = rms_norm(x[rows], self.norm, self.config.rms_norm_eps, residual[rows])
        return linear(x, self.head)

    def _plan_attention(self, batch: ForwardBatch, block_size: int) -> None:
        """What all layers of the step share is worked out once."""
        if batch.num_decodes:
            decode = (batch.decode_block_table, batch.decode_context_lens)
            batch.decode_plan = plan_decode_attention(*decode, block_size)
        if batch.num_decodes < len(batch.token_ids):
            prefill = (batch.prefill_block_table, batch.prefill_context_lens, batch.prefill_cu_q)
            batch.prefill_plan = plan_prefill_attention(*prefill, block_size)


def _take(weights: dict[str, torch.Tensor], name: str, shape: tuple[int, ...], where: str) -> torch.Tensor:
    if name not in weights:
        raise UserError(f"{where}: tensor {name} is missing")
    stored = tuple(weights[name].shape)
    if stored != shape:
        raise UserError(f"{where}: tensor {name} has shape {stored}, the config asks for {shape}")
    if not weights[name].is_floating_point():
        raise UserError(f"{where}: tensor {name} is {weights[name].dtype}; weights must be floating point")
    return weights[name]


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
    h, d, inter = config.hidden_size, config.head_dim, config.intermediate_size
    used = set()

    def take(name: str, *shape: int) -> torch.Tensor:
        used.add(name)
        return _take(weights, name, shape, where)

    def parameter(*tensors: torch.Tensor) -> nn.Parameter:
        joined = torch.cat([tensor.to(dtype) for tensor in tensors]) if len(tensors) > 1 else tensors[0].to(dtype)
        return nn.Parameter(joined.to(device).contiguous(), requires_grad=False)

    # before the modules are made: a damaged number of layers could ask for billions of them
    take(f"model.layers.{config.num_layers - 1}.input_layernorm.weight", h)
    with torch.device("meta"):
        model = Llama(config)
    model.embedding = parameter(take("model.embed_tokens.weight", config.vocab_size, h))
    for i, layer in enumerate(model.layers):
        prefix = f"model.layers.{i}"
        query, key_value = config.num_heads * d, config.num_kv_heads * d
        layer.attention_norm = parameter(take(f"{prefix}.input_layernorm.weight", h))
        layer.mlp_norm = parameter(take(f"{prefix}.post_attention_layernorm.weight", h))
        layer.attention.qkv = parameter(
            take(f"{prefix}.self_attn.q_proj.weight", query, h),
            take(f"{prefix}.self_attn.k_proj.weight", key_value, h),
            take(f"{prefix}.self_attn.v_proj.weight", key_value, h),
        )
        layer.attention.output = parameter(take(f"{prefix}.self_attn.o_proj.weight", h, query))
        layer.mlp.gate_up = parameter(
            take(f"{prefix}.mlp.gate_proj.weight", inter, h), take(f"{prefix}.mlp.up_proj.weight", inter, h)
        )
        layer.mlp.down = parameter(take(f"{prefix}.mlp.down_proj.weight", h, inter))
    model.norm = parameter(take("model.norm.weight", h))
    if config.tie_word_embeddings:
        used.add("lm_head.weight")  # some checkpoints store the tied matrix twice
        model.head = model.embedding
    else:
        model.head = parameter(take("lm_head.weight", config.vocab_size, h))
    if left := sorted(set(weights) - used):
        raise UserError(f"{where}: tensor {left[0]} is not part of a Llama decoder ({len(left)} such tensors)")
    model.cos, model.sin = rope_tables(d, config.rope_theta, config.max_position, torch.float32, device)
    return model

"""Models without a checkpoint: real shapes, random weights. Enough for the time of a step, not for its text."""

import torch

from wholecurve.errors import UserError
from wholecurve.kernels.rope import rope_tables
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import Llama

# Shapes as the `config.json` of these models on the Hugging Face hub states them; the time of a step does not depend
# on the rotary tables, so scaled ones (Llama 3.1 and 3.2) stand here unscaled.
SOURCES = {
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M",
    "llama-1b": "meta-llama/Llama-3.2-1B",
    "llama-3b": "meta-llama/Llama-3.2-3B",
    "llama-8b": "meta-llama/Llama-3.1-8B",
    "tiny": "no model: a few thousand weights, for tests and rehearsals",
}
_TABLE = {
    # vocabulary, hidden, intermediate, layers, heads, key-value heads, head size, rope base, positions, tied
    "smollm2-135m": (49152, 576, 1536, 30, 9, 3, 64, 1e5, 8192, True),
    "smollm2-360m": (49152, 960, 2560, 32, 15, 5, 64, 1e5, 8192, True),
    "llama-1b": (128256, 2048, 8192, 16, 32, 8, 64, 5e5, 131072, True),
    "llama-3b": (128256, 3072, 8192, 28, 24, 8, 128, 5e5, 131072, True),
    "llama-8b": (128256, 4096, 14336, 32, 32, 8, 128, 5e5, 131072, False),
    "tiny": (96, 48, 64, 2, 6, 2, 8, 1e4, 512, True),
}


def dummy_config(name: str) -> ModelConfig:
    """The config of a size by name; UserError lists the names."""
    if name not in _TABLE:
        raise UserError(f"no dummy model {name!r}; there are {', '.join(_TABLE)}")
    vocabulary, hidden, inter, layers, heads, kv_heads, head_dim, theta, positions, tied = _TABLE[name]
    return ModelConfig(
        vocabulary, hidden, inter, layers, heads, kv_heads, head_dim, 1e-5, theta, positions, tied, None, ()
    )


def dummy_model(config: ModelConfig, dtype: torch.dtype, device: str | torch.device, seed: int = 0) -> Llama:
    """A Llama of this shape with normal random weights, made on the device itself; on "meta" without any.

    The scale keeps the numbers of the residual stream near 1, so that no step computes with infinities.
    """
    with torch.device("meta"):
        model = Llama(config)
    model = model.to(dtype).to_empty(device=device).requires_grad_(False)
    if config.tie_word_embeddings:
        model.head = model.embedding
    generator = None if torch.device(device).type == "meta" else torch.Generator(device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        elif generator is not None:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
    model.cos, model.sin = rope_tables(config.head_dim, config.rope_theta, config.max_position, torch.float32, device)
    return model


def dummy_weights(config: ModelConfig, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of this shape on the CPU under Hugging Face names, for a form that packs its own."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inter = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=dtype).normal_(0.0, columns**-0.5, generator=generator)

    weights = {"model.embed_tokens.weight": matrix(config.vocab_size, hidden), "model.norm.weight": torch.ones(hidden)}
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = torch.ones(hidden)
        for name, rows, columns in (
            ("self_attn.q_proj", query, hidden),
            ("self_attn.k_proj", key_value, hidden),
            ("self_attn.v_proj", key_value, hidden),
            ("self_attn.o_proj", hidden, query),
            ("mlp.gate_proj", inter, hidden),
            ("mlp.up_proj", inter, hidden),
            ("mlp.down_proj", hidden, inter),
        ):
            weights[f"{prefix}.{name}.weight"] = matrix(rows, columns)
    return weights

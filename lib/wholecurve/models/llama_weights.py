"""The tensors of a Llama-family checkpoint under the names of their places, checked."""

from dataclasses import dataclass

import torch

from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """Matrices [out_features, in_features] and norms [hidden_size] of one layer, in the type they are stored in."""

    attention_norm: torch.Tensor
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: tuple[torch.Tensor, torch.Tensor]
    down: torch.Tensor


@dataclass(frozen=True)
class LlamaWeights:
    """All of them; `head` is `embedding` where the two are tied."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor


def _take(weights: dict[str, torch.Tensor], name: str, shape: tuple[int, ...], where: str) -> torch.Tensor:
    if name not in weights:
        raise UserError(f"{where}: tensor {name} is missing")
    stored = tuple(weights[name].shape)
    if stored != shape:
        raise UserError(f"{where}: tensor {name} has shape {stored}, the config asks for {shape}")
    if not weights[name].is_floating_point():
        raise UserError(f"{where}: tensor {name} is {weights[name].dtype}; weights must be floating point")
    return weights[name]


def take_weights(config: ModelConfig, weights: dict[str, torch.Tensor], where: str) -> LlamaWeights:
    """The weights of `config` out of tensors under Hugging Face names.

    Raises UserError naming `where` and the tensor when one is missing, left over, of the wrong shape or not of numbers
    that can be cast.
    """
    hidden, inter = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    used = set()

    def take(name: str, *shape: int) -> torch.Tensor:
        used.add(name)
        return _take(weights, name, shape, where)

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=take(f"{prefix}.input_layernorm.weight", hidden),
            qkv=(
                take(f"{attention}.q_proj.weight", query, hidden),
                take(f"{attention}.k_proj.weight", key_value, hidden),
                take(f"{attention}.v_proj.weight", key_value, hidden),
            ),
            output=take(f"{attention}.o_proj.weight", hidden, query),
            mlp_norm=take(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=(
                take(f"{mlp}.gate_proj.weight", inter, hidden),
                take(f"{mlp}.up_proj.weight", inter, hidden),
            ),
            down=take(f"{mlp}.down_proj.weight", hidden, inter),
        )

    # before the others are looked at: a damaged number of layers could ask for billions of them
    take(f"model.layers.{config.num_layers - 1}.input_layernorm.weight", hidden)
    embedding = take("model.embed_tokens.weight", config.vocab_size, hidden)
    layers = [layer(f"model.layers.{i}") for i in range(config.num_layers)]
    norm = take("model.norm.weight", hidden)
    if config.tie_word_embeddings:
        used.add("lm_head.weight")  # some checkpoints store the tied matrix twice
        head = embedding
    else:
        head = take("lm_head.weight", config.vocab_size, hidden)
    if left := sorted(set(weights) - used):
        raise UserError(f"{where}: tensor {left[0]} is not part of a Llama decoder ({len(left)} such tensors)")
    return LlamaWeights(embedding, layers, norm, head)

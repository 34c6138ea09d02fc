"""Tiny random Llama checkpoints: as transformers writes them, and as a GGUF file."""

import gguf
import numpy as np
import torch

from wholecurve.engine.batching import single_batch

TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
GGUF_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
GGUF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def transformers_model(seed=0, **changes):
    """A float32 LlamaForCausalLM whose attention is far from uniform and whose norms are far from 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
    return model


def half_split_to_interleaved(weight, heads):
    """Rows of q or k in the order that GGUF stores, written out pair by pair."""
    size = weight.shape[0] // heads
    order = [h * size + i + part * size // 2 for h in range(heads) for i in range(size // 2) for part in (0, 1)]
    return weight[order]


def write_tiny_gguf(path, model, metadata=(), leave_out=(), replace=(), quantization=None):
    """Write a transformers model as GGUF. `metadata`: key -> value or None; `replace`: tensor name -> array."""
    config, metadata, replace = model.config, dict(metadata), dict(replace)
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "llama"))
    if alignment := metadata.pop("general.alignment", None):
        writer.add_custom_alignment(alignment)
    values = {f"llama.{key}": getattr(config, name, None) for name, key in GGUF_KEYS.items()}
    values["llama.rope.freq_base"] = config.rope_parameters["rope_theta"]
    values["llama.attention.key_length"] = config.head_dim
    values["tokenizer.ggml.eos_token_id"] = 2
    for key, value in {**values, **metadata}.items():
        if value is not None:
            add = writer.add_string if isinstance(value, str) else writer.add_float32
            (writer.add_uint32 if isinstance(value, int) else writer.add_array if isinstance(value, list) else add)(
                key, value
            )
    for name, tensor in {**gguf_tensors(model), **replace}.items():
        if name not in leave_out:
            if quantization is not None and tensor.ndim == 2:
                writer.add_tensor(name, gguf.quantize(tensor, quantization), raw_dtype=quantization)
            else:
                writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(model):
    """GGUF name -> float32 array of every tensor of a transformers model."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    tensors = {}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        stem = name.removesuffix(".weight").removeprefix("model.")
        if stem.startswith("layers."):
            _, layer, part = stem.split(".", 2)
            if (kind := part.rpartition(".")[2]) in heads:
                values = half_split_to_interleaved(values, heads[kind])
            tensors[f"blk.{layer}.{GGUF_LAYER[part]}.weight"] = values
        elif stem != "lm_head" or not model.config.tie_word_embeddings:
            top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[stem]
            tensors[f"{top}.weight"] = values
    return tensors


@torch.inference_mode()
def logits_by_chunks(model, token_ids, chunks, block_size=4):
    """Logits [T, vocab] of every position, computed in prefill chunks; a chunk "decode" is one token by decode.

    The blocks of the sequence lie in the cache in descending order, and the cache starts full of NaN.
    """
    blocks = list(range(-(-len(token_ids) // block_size)))[::-1]
    caches = [spec.allocate(len(blocks), block_size, model.dtype, model.device) for spec in model.cache_specs]
    for tensor in [tensor for cache in caches for tensor in cache.keys + cache.values]:
        tensor.fill_(torch.nan)
    start, rows = 0, []
    for chunk in chunks:
        count = 1 if chunk == "decode" else chunk
        tables, sizes = [blocks] * len(caches), [block_size] * len(caches)
        batch = single_batch(token_ids[start : start + count], start, tables, sizes, model.device, list(range(count)))
        # a chunk of one token is a decode row only where the list says so
        batch.num_decodes = int(chunk == "decode")
        rows.append(model(batch, caches))
        start += count
    return torch.cat(rows)


def largest_error(logits, expected):
    """max |difference| / max |expected|: the infinity norm of the error relative to that of the logits."""
    return float((logits.float() - expected).abs().max() / expected.abs().max())


def error_of_spread(logits, expected):
    """Root mean square error of each position's logits over their standard deviation, averaged over positions.

    A constant added to all logits of a position changes no probability, so the spread is the scale that counts.
    """
    error = (logits.float() - expected).square().mean(dim=1).sqrt()
    return float((error / expected.std(dim=1)).mean())

"""GGUF checkpoints: read a Llama-family file as Hugging Face names, write a dequantised F16 copy for other engines."""

from pathlib import Path

import gguf
import numpy as np
import torch

from wholecurve.errors import UserError
from wholecurve.files import replacing
from wholecurve.models.config import InconsistentConfig, ModelConfig, positive

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Open a GGUF file whose magic and structure are right and whose tensors all lie inside it."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: {'missing' if isinstance(error, FileNotFoundError) else error.strerror}") from None
    if magic != b"GGUF":
        raise UserError(f"{path}: not a GGUF file (it starts with {magic!r}, a GGUF file with b'GGUF')")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: truncated or damaged GGUF file ({error}); fetch it again") from None
    return reader


def _value(reader: gguf.GGUFReader, path: Path, key: str, default=None):
    field = reader.fields.get(key)
    if field is None:
        if default is None:
            raise UserError(f"{path}: metadata key {key} is missing")
        return default
    try:
        return field.contents()
    except UnicodeDecodeError:
        raise UserError(f"{path}: metadata key {key} is not UTF-8 text") from None


def config_from_gguf(reader: gguf.GGUFReader, path: Path) -> ModelConfig:
    """Read the model shape from the metadata; refuses other architectures and scaled or partial rotary tables."""
    architecture = _value(reader, path, "general.architecture")
    if architecture != "llama":
        raise UserError(f"{path}: general.architecture is {architecture!r}; supported: 'llama'")
    scaling = _value(reader, path, "llama.rope.scaling.type", "none")
    if scaling != "none":
        raise UserError(f"{path}: llama.rope.scaling.type is {scaling!r}; supported: 'none'")
    for key in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        # without a type, llama.cpp reads a factor as linear scaling; 0 means that there is none
        if (factor := _value(reader, path, key, 0)) not in (0, 1):
            raise UserError(f"{path}: {key} is {factor!r}; supported: 1")
    names = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise UserError(f"{path}: tensor token_embd.weight is missing")

    def number(field: str, default: float | None = None, kind: type = int) -> int | float:
        key = f"llama.{field}"
        return positive(_value(reader, path, key, default), key, str(path), kind)

    heads, hidden = number("attention.head_count"), number("embedding_length")
    eos = reader.fields.get("tokenizer.ggml.eos_token_id")
    bos = reader.fields.get("tokenizer.ggml.bos_token_id")
    try:
        config = ModelConfig(
            vocab_size=int(names["token_embd.weight"].shape[-1]),
            hidden_size=hidden,
            intermediate_size=number("feed_forward_length"),
            num_layers=number("block_count"),
            num_heads=heads,
            num_kv_heads=number("attention.head_count_kv", heads),
            head_dim=number("attention.key_length", hidden // heads),
            rms_norm_eps=number("attention.layer_norm_rms_epsilon", kind=float),
            rope_theta=number("rope.freq_base", 10000.0, float),
            max_position=number("context_length"),
            tie_word_embeddings="output.weight" not in names,
            bos_token_id=bos.contents() if bos else None,
            eos_token_ids=(eos.contents(),) if eos else (),
        )
    except InconsistentConfig as error:
        raise UserError(f"{path}: {error}") from None
    rotated = _value(reader, path, "llama.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise UserError(f"{path}: llama.rope.dimension_count is {rotated}; supported: the head size {config.head_dim}")
    return config


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None for one that this family does not have."""
    stem, _, suffix = name.rpartition(".")
    if suffix != "weight":
        return None
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    block, _, part = stem.removeprefix("blk.").partition(".")
    return f"model.layers.{block}.{_LAYER_NAMES[part]}.weight" if part in _LAYER_NAMES else None


def _dequantized(tensor: gguf.ReaderTensor, path: Path) -> np.ndarray:
    """float32 values of a tensor, numpy order of dimensions."""
    try:
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        raise UserError(f"{path}: tensor {tensor.name} has type {kind}, which cannot be dequantised") from None


def _interleaved_to_half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores the rows of q and k for interleaved rotary pairs; the half-split layout needs them sorted back."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_gguf(path: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Config and float32 weights [out_features, in_features] under Hugging Face names."""
    reader = open_gguf(path)
    config = config_from_gguf(reader, path)
    weights = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        if name is None:
            if tensor.name == "rope_freqs.weight":
                raise UserError(f"{path}: tensor rope_freqs.weight (scaled rotary table) is not supported")
            raise UserError(f"{path}: tensor {tensor.name} is not part of a Llama decoder that this engine knows")
        values = _dequantized(tensor, path)
        if ".q_proj." in name or ".k_proj." in name:
            heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
            if values.ndim != 2 or values.shape[0] != heads * config.head_dim:
                raise UserError(
                    f"{path}: tensor {tensor.name} has shape {values.shape}, "
                    f"the metadata ask for {(heads * config.head_dim, config.hidden_size)}"
                )
            values = _interleaved_to_half_split(values, heads)
        # an unquantised tensor is a view of the read-only file, which torch must not get
        weights[name] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return config, weights


def write_f16_gguf(source: Path, target: Path) -> None:
    """Dequantise `source` to F16 matrices (norms stay F32), with all metadata, for engines that need plain GGUF."""
    reader = open_gguf(source)
    with replacing(target) as partial:
        writer = gguf.GGUFWriter(partial, _value(reader, source, "general.architecture"))
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture" or not field.data:
                continue  # the writer makes the first two itself, and it cannot write an empty array
            if key == "general.alignment":
                writer.add_custom_alignment(reader.alignment)
                continue
            value = int(gguf.LlamaFileType.MOSTLY_F16) if key == "general.file_type" else _value(reader, source, key)
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, value, field.types[0], sub_type=field.types[1] if is_array else None)
        for tensor in reader.tensors:
            values = _dequantized(tensor, source)
            writer.add_tensor(tensor.name, values if values.ndim == 1 else values.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

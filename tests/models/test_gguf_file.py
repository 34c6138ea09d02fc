"""GGUF files: names, permutation, quantisation, and the F16 copy."""

import gguf
import numpy as np
import pytest
import torch
from tiny_checkpoints import gguf_tensors, transformers_model, write_tiny_gguf

from wholecurve.models.gguf_file import hf_name, read_gguf, write_f16_gguf


@pytest.fixture(scope="module")
def theirs():
    return transformers_model(num_key_value_heads=2, tie_word_embeddings=False, rope_theta=5000.0)


def test_config_and_weights_come_back(theirs, tmp_path):
    config, weights = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", theirs))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (97, 64, 88)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert config.rope_theta == 5000.0 and config.rms_norm_eps == pytest.approx(1e-3) and config.max_position == 64
    assert not config.tie_word_embeddings and config.eos_token_ids == (2,) and config.bos_token_id is None
    assert weights.keys() == theirs.state_dict().keys()
    for name, expected in theirs.state_dict().items():
        assert torch.equal(weights[name], expected), name


def test_head_size_and_kv_heads_default_to_those_of_the_heads(tmp_path):
    plain = transformers_model(num_key_value_heads=4)
    keys = ("attention.key_length", "attention.head_count_kv", "rope.freq_base")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", plain, {f"llama.{key}": None for key in keys})
    config, _ = read_gguf(path)
    assert (config.head_dim, config.num_kv_heads, config.rope_theta) == (16, 4, 10000.0)
    assert config.tie_word_embeddings


def test_weights_do_not_lie_in_the_read_only_file(theirs, tmp_path, monkeypatch):
    """torch warns of such memory (once, so the warning is no use here), and writing to it ends the process."""
    path, given, from_numpy = write_tiny_gguf(tmp_path / "tiny.gguf", theirs), [], torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: (given.append(array), from_numpy(array))[1])
    _, weights = read_gguf(path)
    assert len(given) == len(weights) and all(array.flags.writeable for array in given)


def test_rows_of_q_and_k_are_sorted_from_pairs_to_halves(tmp_path):
    """GGUF rows of a head of 4: pair (0, 1), pair (2, 3). Half-split order: first members, then second members."""
    small = transformers_model(hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=4)
    rows = np.arange(8, dtype=np.float32)[:, None].repeat(8, axis=1)
    replace = {"blk.0.attn_q.weight": rows, "blk.0.attn_k.weight": rows[:4], "blk.0.attn_v.weight": rows[:4]}
    _, weights = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", small, replace=replace))
    assert weights["model.layers.0.self_attn.q_proj.weight"][:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert weights["model.layers.0.self_attn.k_proj.weight"][:, 0].tolist() == [0, 2, 1, 3]
    assert weights["model.layers.0.self_attn.v_proj.weight"][:, 0].tolist() == [0, 1, 2, 3]


def test_quantised_matrices_are_dequantised(theirs, tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    small = transformers_model(intermediate_size=96)
    _, weights = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", small, quantization=kind))
    for name, expected in small.state_dict().items():
        if name in weights:
            # a block of 32 is scaled by its largest magnitude / 127, and the scale itself is rounded to F16
            step = expected.abs().max() / 127
            assert (weights[name] - expected).abs().max() <= step * (0.5 + 127 * 2**-11), name
    down = gguf_tensors(small)["blk.1.ffn_down.weight"]
    exact = gguf.dequantize(gguf.quantize(down, kind), kind)
    assert np.array_equal(weights["model.layers.1.mlp.down_proj.weight"].numpy(), exact)


@pytest.mark.parametrize("alignment", [None, 64, 256])
def test_the_f16_copy_holds_the_weights_rounded_once(theirs, tmp_path, alignment):
    """Matrices are F16, norms stay F32, and every other metadata key is carried over."""
    metadata = {"general.alignment": alignment, "general.name": "tiny", "general.file_type": 0, "test.list": ["a", "ß"]}
    source = write_tiny_gguf(tmp_path / "tiny.gguf", theirs, metadata)
    target = tmp_path / "copies" / "f16.gguf"
    write_f16_gguf(source, target)
    config, weights = read_gguf(source)
    copied_config, copied = read_gguf(target)
    assert copied_config == config and copied.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(copied[name], weight if weight.dim() == 1 else weight.half().float()), name
    before, after = (gguf.GGUFReader(path) for path in (source, target))
    assert {t.name: t.tensor_type.name for t in after.tensors if t.name.endswith("q.weight")} == {
        "blk.0.attn_q.weight": "F16",
        "blk.1.attn_q.weight": "F16",
    }
    for key, field in before.fields.items():
        if not key.startswith("GGUF."):
            value = gguf.LlamaFileType.MOSTLY_F16 if key == "general.file_type" else field.contents()
            assert after.fields[key].contents() == value, key
    assert [path.name for path in target.parent.iterdir()] == ["f16.gguf"]


def test_an_empty_array_in_the_metadata_does_not_stop_the_copy(theirs, tmp_path, monkeypatch):
    """gguf's writer refuses to write what its reader reads, so the array is written past its check."""
    with monkeypatch.context() as patch:
        original = gguf.GGUFWriter._pack_val
        empty = b"\x09\x00\x00\x00" + b"\x08\x00\x00\x00" + bytes(8)
        patch.setattr(
            gguf.GGUFWriter, "_pack_val", lambda self, v, *a, **k: empty if v == [] else original(self, v, *a, **k)
        )
        patch.setattr(gguf.GGUFWriter, "add_array", lambda self, key, value: self.add_key_value(key, value, 9))
        source = write_tiny_gguf(tmp_path / "tiny.gguf", theirs, {"test.list": []})
    assert "test.list" in gguf.GGUFReader(source).fields
    write_f16_gguf(source, tmp_path / "f16.gguf")
    assert "test.list" not in gguf.GGUFReader(tmp_path / "f16.gguf").fields


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.11.ffn_gate.weight", "model.layers.11.mlp.gate_proj.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.attn_q.bias", None),
        ("blk.0.ffn_gate_exps.weight", None),
        ("attn_q.weight", None),
        ("rope_freqs.weight", None),
    ],
)
def test_names(name, expected):
    assert hf_name(name) == expected

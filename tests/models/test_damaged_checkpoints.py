"""Whatever is wrong with a checkpoint is one line that names the file and what is wrong; no other error gets out."""

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import transformers_model, write_tiny_gguf

from wholecurve.engine.load import load_model
from wholecurve.errors import UserError
from wholecurve.models.folder import read_folder
from wholecurve.models.gguf_file import read_gguf, write_f16_gguf
from wholecurve.models.llama import build_llama
from wholecurve.models.resolve import ModelFiles, resolve


@pytest.fixture(scope="module")
def theirs():
    return transformers_model(num_hidden_layers=1, hidden_size=32, intermediate_size=32, head_dim=8)


@pytest.fixture(scope="module")
def good_folder(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good_folder, tmp_path):
    shutil.copytree(good_folder, tmp_path / "model")
    return tmp_path / "model"


def refusal(action, *names):
    """The message of the UserError that `action` raises; it is one line and holds every name."""
    with pytest.raises(UserError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    for name in names:
        assert str(name) in message, message
    return message


def load(path):
    files = ModelFiles("tiny", path, None) if path.suffix == ".gguf" else ModelFiles("tiny", None, path)
    return load_model(files, "float32", "cpu")


@pytest.mark.parametrize("cut", range(20))
def test_a_gguf_cut_anywhere(theirs, tmp_path, cut):
    whole = write_tiny_gguf(tmp_path / "whole.gguf", theirs).read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: len(whole) * cut // 20])
    refusal(lambda: read_gguf(path), path, "not a GGUF file" if cut == 0 else "truncated")
    refusal(lambda: write_f16_gguf(path, tmp_path / "out.gguf"), path)
    assert not (tmp_path / "out.gguf").exists()


def test_a_gguf_cut_inside_its_header(theirs, tmp_path):
    """Every byte of the first 1,500 and the last one: metadata, tensor table, and the edge of the last tensor."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", theirs)
    whole = path.read_bytes()
    last = max(int(t.data_offset) + int(t.n_bytes) for t in gguf.GGUFReader(path).tensors)
    for length in [*range(4, 1500, 7), last - 1]:
        path.write_bytes(whole[:length])
        refusal(lambda: read_gguf(path), path, "truncated")
    path.write_bytes(whole[:last])
    read_gguf(path)


def test_a_gguf_with_one_damaged_byte_in_its_header_is_read_or_refused(theirs, tmp_path):
    """Lengths, types and counts that make no sense must not surface as errors of numpy or of the library."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", theirs)
    whole = path.read_bytes()
    refused = 0
    for position in range(4, 1400, 9):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xD5]) + whole[position + 1 :])
        try:
            read_gguf(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("cut", range(20))
def test_safetensors_cut_anywhere(folder, cut):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * cut // 20])
    refusal(lambda: read_folder(folder), path, "truncated or damaged")


def test_files_that_are_not_there(folder, tmp_path):
    refusal(lambda: read_gguf(tmp_path / "none.gguf"), tmp_path / "none.gguf", "missing")
    (tmp_path / "folder.gguf").mkdir()
    refusal(lambda: read_gguf(tmp_path / "folder.gguf"), tmp_path / "folder.gguf", "directory")
    (folder / "model.safetensors").unlink()
    refusal(lambda: read_folder(folder), folder, "no model.safetensors")
    (folder / "config.json").unlink()
    refusal(lambda: read_folder(folder), folder / "config.json", "missing")
    refusal(lambda: resolve(str(folder)), folder / "config.json", "missing")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not valid JSON"),
        ('{"model_type": "llama", ', "not valid JSON"),
        ("[1, 2]", "holds a JSON list"),
        ("null", "holds a JSON NoneType"),
        ("{}", "model_type is None"),
    ],
)
def test_a_broken_config(folder, text, named):
    (folder / "config.json").write_text(text)
    refusal(lambda: read_folder(folder), folder / "config.json", named)


def test_a_config_in_another_encoding(folder):
    (folder / "config.json").write_bytes('{"model_type": "llama"}'.encode("utf-16"))
    refusal(lambda: read_folder(folder), folder / "config.json", "not valid JSON")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({}, "weight_map"),
        ({"weight_map": ["model.safetensors"]}, "weight_map"),
        ({"weight_map": {"model.norm.weight": 3}}, "weight_map"),
        ({"weight_map": {"model.norm.weight": "part-2.safetensors"}}, "part-2.safetensors: missing"),
    ],
)
def test_a_broken_index(folder, document, named):
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    refusal(lambda: read_folder(folder), folder, named)


def test_a_checkpoint_in_several_files_is_read_whole(folder, good_folder):
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"part-1.safetensors": names[::2], "part-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (config, read), (expected_config, expected) = read_folder(folder), read_folder(good_folder)
    assert config == expected_config and read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)


NORM, DOWN = "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({NORM: None}, (NORM, "missing")),
        ({"model.norm.weight": None}, ("model.norm.weight", "missing")),
        ({DOWN: torch.zeros(32, 31)}, (DOWN, "shape (32, 31)", "(32, 32)")),
        ({NORM: torch.zeros(32, dtype=torch.int8)}, (NORM, "torch.int8")),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}, ("q_proj.bias", "not part of a Llama")),
        ({"model.layers.1.input_layernorm.weight": torch.zeros(32)}, ("layers.1.input_layernorm", "not part")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_tensors_that_do_not_fit_the_config(folder, change, named):
    weights = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: t for name, t in weights.items() if t is not None}, folder / "model.safetensors")
    refusal(lambda: load(folder), folder, *named)


def test_a_number_of_layers_beyond_reason_is_refused_at_once(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    refusal(lambda: load(folder), folder, "model.layers.999999999.", "missing")


def test_an_untied_head_must_be_there(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    refusal(lambda: load(folder), folder, "lm_head.weight", "missing")


def test_a_tied_head_that_is_stored_twice_is_accepted(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    model = build_llama(*read_folder(folder), torch.float32)
    assert model.head is model.embedding


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "qwen2"}, ("general.architecture", "'qwen2'")),
        ({"llama.rope.scaling.type": "yarn"}, ("llama.rope.scaling.type", "'yarn'")),
        ({"llama.rope.scaling.factor": 8.0}, ("llama.rope.scaling.factor", "8.0")),
        ({"llama.rope.scale_linear": 2.0}, ("llama.rope.scale_linear", "2.0")),
        ({"llama.rope.dimension_count": 4}, ("llama.rope.dimension_count", "4")),
        ({"llama.block_count": None}, ("llama.block_count", "missing")),
        ({"llama.context_length": None}, ("llama.context_length", "missing")),
        ({"llama.embedding_length": None}, ("llama.embedding_length", "missing")),
        ({"llama.attention.head_count": 0}, ("llama.attention.head_count", "0")),
        ({"llama.attention.head_count_kv": [2, 2]}, ("llama.attention.head_count_kv", "[2, 2]")),
        ({"llama.attention.head_count_kv": 3}, ("4 attention heads", "3 key-value heads")),
        ({"llama.attention.key_length": 16}, ("blk.0.attn_q.weight", "shape (32, 32)", "(64, 32)")),
        ({"llama.embedding_length": 24}, ("shape", "24")),
        ({"llama.block_count": 2}, ("model.layers.1.", "missing")),
        ({"llama.feed_forward_length": "many"}, ("llama.feed_forward_length", "'many'")),
    ],
    ids=str,
)
def test_gguf_metadata_that_cannot_be_run(theirs, tmp_path, metadata, named):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", theirs, metadata)
    refusal(lambda: load(path), path, *named)


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_a_rotary_factor_that_scales_nothing_is_accepted(theirs, tmp_path, factor):
    load(write_tiny_gguf(tmp_path / "tiny.gguf", theirs, {"llama.rope.scaling.factor": factor}))


@pytest.mark.parametrize(
    ("leave_out", "replace", "named"),
    [
        (["token_embd.weight"], {}, ("token_embd.weight", "missing")),
        (["blk.0.ffn_up.weight"], {}, ("mlp.up_proj", "missing")),
        ([], {"blk.0.attn_q.weight": np.ones(32, np.float32)}, ("blk.0.attn_q.weight", "shape (32,)")),
        ([], {"blk.0.attn_k.weight": np.ones((15, 32), np.float32)}, ("blk.0.attn_k.weight", "shape (15, 32)")),
        ([], {"blk.0.ffn_up.weight": np.ones((32, 31), np.float32)}, ("mlp.up_proj", "shape (32, 31)")),
        ([], {"token_embd.weight": np.ones(32, np.float32)}, ("embed_tokens", "shape (32,)")),
        ([], {"blk.0.ffn_up.weight": np.ones((32, 32), np.int8)}, ("blk.0.ffn_up.weight", "type I8")),
        ([], {"rope_freqs.weight": np.ones(4, np.float32)}, ("rope_freqs.weight", "scaled rotary table")),
        ([], {"blk.0.attn_q.bias": np.ones(32, np.float32)}, ("blk.0.attn_q.bias", "not part")),
        ([], {"blk.0.ffn_gate_exps.weight": np.ones((2, 32), np.float32)}, ("ffn_gate_exps", "not part")),
        ([], {"stray.attn_q.weight": np.ones((32, 32), np.float32)}, ("stray", "not part")),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_gguf_tensors_that_do_not_fit(theirs, tmp_path, leave_out, replace, named):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", theirs, leave_out=leave_out, replace=replace)
    refusal(lambda: load(path), path, *named)


def test_a_file_with_another_magic(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    refusal(lambda: read_gguf(path), path, "not a GGUF file", "PK")


def test_an_unknown_dtype_is_refused_before_anything_is_read(tmp_path):
    files = ModelFiles("none", tmp_path / "none.gguf", None)
    refusal(lambda: load_model(files, "int3", "cpu"), "'int3'", "bfloat16")

"""Reading `config.json`, and the cost formulas against matrices counted by hand and by torch."""

import pytest
import torch
from tiny_checkpoints import TINY, logits_by_chunks, transformers_model
from torch.utils.flop_counter import FlopCounterMode

from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig, config_from_hf, config_to_hf
from wholecurve.models.llama import build_llama

GOOD = {**TINY, "model_type": "llama"}
SMOLLM2 = ModelConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    max_position=8192,
    tie_word_embeddings=True,
)
# one layer of SmolLM2: q and o, k and v, the three of the MLP
LAYER_MATRICES = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536


def test_fields_of_a_plain_config():
    config = config_from_hf({**GOOD, "eos_token_id": [2, 5], "bos_token_id": 1}, "here")
    assert config == ModelConfig(97, 64, 88, 2, 4, 2, 16, 1e-3, 10000.0, 64, True, 1, (2, 5))


def test_what_is_written_is_read_again():
    config = config_from_hf({**GOOD, "head_dim": 32, "num_key_value_heads": 1, "rope_theta": 77}, "here")
    assert config_from_hf(config_to_hf(config, "float16"), "there") == config


def test_defaults_of_fields_that_old_checkpoints_lack():
    old = {key: value for key, value in GOOD.items() if key not in ("num_key_value_heads", "rope_theta")}
    config = config_from_hf({**old, "tie_word_embeddings": None, "eos_token_id": None, "head_dim": None}, "here")
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert config.tie_word_embeddings is False and config.eos_token_ids == ()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 1.0},
        {"rope_scaling": None, "rope_theta": 5e5},
        {"rope_scaling": {"type": "default"}, "rope_theta": 5e5},
    ],
)
def test_the_rotary_base_is_found_in_old_and_new_configs(rope):
    assert config_from_hf({**GOOD, **rope}, "here").rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2'"),
        ({"model_type": None}, "model_type is None"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters has type 'llama3'"),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {"rope_type": "yarn"}}, "rope_scaling has type"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number above 0"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3 key-value heads"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        *(({field: None}, f"{field} is missing") for field in GOOD if field not in (
            "model_type", "num_key_value_heads", "tie_word_embeddings", "eos_token_id", "rope_theta")),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_line(change, named):
    with pytest.raises(UserError) as refusal:
        config_from_hf({**GOOD, **change}, "some/config.json")
    assert str(refusal.value).startswith("some/config.json: ") and named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_parameters_and_bytes_of_smollm2_by_hand():
    layers = 30 * (LAYER_MATRICES + 2 * 576)
    assert SMOLLM2.num_layer_parameters == layers
    assert SMOLLM2.num_parameters == layers + 49152 * 576 + 576 == 134_515_008
    # the head is read even where it is the embedding; of an untied embedding only a few rows are
    assert SMOLLM2.weight_bytes_per_step(2) == 2 * 134_515_008
    assert SMOLLM2.kv_bytes_per_token(2) == 2 * (2 * 30 * 3 * 64) == 23_040


def test_untied_embeddings_count_twice_but_are_read_once():
    untied = ModelConfig(**{**vars(SMOLLM2), "tie_word_embeddings": False})
    assert untied.num_parameters == SMOLLM2.num_parameters + 49152 * 576
    assert untied.weight_bytes_per_step(4) == SMOLLM2.weight_bytes_per_step(4)


def test_flops_of_smollm2_by_hand():
    matrices = 2 * (30 * LAYER_MATRICES + 49152 * 576)
    assert SMOLLM2.decode_flops(1, 0) == matrices
    # q kᵀ and the weighted sum of v: 2 FLOPs per head, channel and key each
    assert SMOLLM2.decode_flops(3, 100) == 3 * (matrices + 30 * 9 * 64 * 100 * 4)
    pairs = 1 + 2 + 3 + 4 + 5
    assert SMOLLM2.prefill_flops(5) == 2 * 5 * 30 * LAYER_MATRICES + 30 * 9 * 64 * 4 * pairs + 2 * 49152 * 576
    assert SMOLLM2.prefill_flops(1) == SMOLLM2.decode_flops(1, 1)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 3}], ids=str)
def test_flops_are_those_that_torch_counts(changes, monkeypatch):
    """With the reference attention (einsum, nothing skipped), which multiplies masked pairs of a prefill as well."""
    from wholecurve.kernels import forms

    monkeypatch.setattr(forms, "form_for", lambda *_: "reference")
    # padding rows for exactness is work that the formula rightly leaves out
    monkeypatch.setattr("wholecurve.models.llama.linear", torch.nn.functional.linear)
    theirs = transformers_model(**changes)
    config = config_from_hf(theirs.config.to_dict(), "tiny")
    model = build_llama(config, theirs.state_dict(), torch.float32)

    def counted(chunks):
        with FlopCounterMode(display=False) as counter:
            logits_by_chunks(model, list(range(11)), chunks)
        return counter.get_total_flops()

    attention_of_a_pair = config.num_layers * config.num_heads * config.head_dim * 4
    masked_pairs, head = 11 * 10 // 2, 2 * config.vocab_size * config.hidden_size
    # logits_by_chunks asks for the logits of all 11 rows
    assert counted([11]) == config.prefill_flops(11) + masked_pairs * attention_of_a_pair + 10 * head
    decoded = counted([2] + ["decode"] * 9) - counted([2])
    assert decoded == sum(config.decode_flops(1, context) for context in range(3, 12))

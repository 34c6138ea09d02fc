"""Sizes that a machine can hold, what a step must do at least, and what is said about both."""

import pytest
import torch

from wholecurve.errors import UserError
from wholecurve.models.bounds import Ceilings
from wholecurve.models.config import ModelConfig
from wholecurve.studies.steps import scaling
from wholecurve.studies.steps.scaling import Limit, free_bytes, halved_to_fit, require_fit
from wholecurve.studies.steps.work import decode_work, prefill_work

CONFIG = ModelConfig(100, 32, 64, 2, 4, 2, 8, 1e-5, 1e4, 512, True)


def below(most, reason="too long"):
    return Limit(lambda size: size <= most, reason)


def test_a_size_is_halved_until_every_limit_allows_it_and_each_reason_is_said_once():
    scaled = halved_to_fit("context", 131072, [below(9000, "positions"), below(5000, "memory")])
    assert scaled.size == 4096
    assert scaled.note == "context scaled down from 131,072 to 4,096: positions; memory"
    assert halved_to_fit("context", 64, [below(64)]) == scaling.Scaled(64, "")


def test_what_cannot_be_halved_enough_is_an_error():
    with pytest.raises(UserError, match="context cannot be scaled down from 64 to 1: too long"):
        halved_to_fit("context", 64, [below(0)])
    with pytest.raises(UserError, match="tokens cannot be scaled down from 64 to 16"):
        halved_to_fit("tokens", 64, [below(15)], smallest=16)
    assert halved_to_fit("tokens", 64, [below(16)], smallest=16).size == 16


def test_a_size_that_was_asked_for_is_never_changed():
    require_fit("context", 100, [below(100)])
    with pytest.raises(UserError, match="context 101 does not fit: too long; 64 would fit"):
        require_fit("context", 101, [below(100)])
    with pytest.raises(UserError, match=r"too long$"):
        require_fit("context", 101, [below(0)])


def test_free_memory_is_a_share_of_the_lower_of_system_and_control_group(monkeypatch):
    monkeypatch.setattr(scaling, "available_bytes", lambda: 1000)
    monkeypatch.setattr(scaling, "group_bytes", lambda: 600)
    assert free_bytes("cpu") == 300
    monkeypatch.setattr(scaling, "group_bytes", lambda: 5000)
    assert free_bytes(torch.device("cpu")) == 500


def test_this_system_says_how_much_is_free():
    assert 2**20 < scaling.available_bytes() < 2**50 and scaling.group_bytes() > 2**20


def test_decode_work_reads_weights_once_and_the_cache_of_every_request():
    work = decode_work(CONFIG, 2, requests=3, context=10, drafts=0)
    assert work.read_bytes == CONFIG.weight_bytes_per_step(2) + 30 * CONFIG.kv_bytes_per_token(2)
    assert work.flops == CONFIG.decode_flops(3, 11)  # the new token sees itself too
    shared = decode_work(CONFIG, 2, requests=3, context=10, drafts=0, distinct=1)
    assert shared.read_bytes == CONFIG.weight_bytes_per_step(2) + 10 * CONFIG.kv_bytes_per_token(2)
    assert decode_work(CONFIG, 2, 3, 10, 0, distinct=9) == work


def test_decode_work_counts_each_row_over_the_keys_that_it_sees():
    drafted = decode_work(CONFIG, 2, requests=3, context=10, drafts=2)
    assert drafted.flops == pytest.approx(sum(CONFIG.decode_flops(3, keys) for keys in (11, 12, 13)))
    assert drafted.read_bytes == decode_work(CONFIG, 2, 3, 10, 0).read_bytes


def test_prefill_work_from_an_empty_cache_is_that_of_a_prompt():
    assert prefill_work(CONFIG, 2, [7], cached=0).flops == CONFIG.prefill_flops(7)
    assert prefill_work(CONFIG, 2, [7], cached=0).read_bytes == CONFIG.weight_bytes_per_step(2)


def test_prefill_work_on_top_of_a_cache_counts_unmasked_pairs():
    per_pair = 4 * CONFIG.num_layers * CONFIG.num_heads * CONFIG.head_dim
    with_cache, without = (prefill_work(CONFIG, 2, [7, 3], cached).flops for cached in (20, 0))
    assert with_cache - without == pytest.approx(per_pair * 10 * 20)
    read = prefill_work(CONFIG, 2, [7, 3], cached=20).read_bytes
    assert read == CONFIG.weight_bytes_per_step(2) + 40 * CONFIG.kv_bytes_per_token(2)


def test_the_bound_is_the_slower_of_memory_and_compute():
    work = decode_work(CONFIG, 2, 1, 10, 0)
    seconds, limit = work.seconds(Ceilings(1.0, 1e30))
    assert (seconds, limit) == (work.read_bytes, "memory")
    assert work.seconds(Ceilings(1e30, 1.0)) == (work.flops, "compute")

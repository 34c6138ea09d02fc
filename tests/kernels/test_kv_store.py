import pytest
import torch
from kernel_checks import DTYPES, Guarded, case_id

from wholecurve.kernels.kv_store import store_kv
from wholecurve.kernels.kv_store.spec import TESTS

FORMS = ("reference", "cpu")


@pytest.mark.parametrize("case", TESTS, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("skip", [False, True])
def test_writes_each_token_and_nothing_else(case, dtype, form, skip):
    torch.manual_seed(0)
    tokens, block_size = case["num_tokens"], case["block_size"]
    shape = (-(-tokens // block_size) + 2, block_size, case["num_kv_heads"], case["head_dim"])
    k_cache, v_cache = torch.full(shape, 7.0, dtype=dtype), torch.full(shape, 7.0, dtype=dtype)
    slots = torch.randperm(shape[0] * block_size)[:tokens]
    if skip:
        slots[::3] = -1
    guarded = Guarded()
    # one projection of q, k and v gives rows that are not contiguous
    k, v = (guarded(torch.randn(tokens, *shape[2:]).to(dtype), row_gap=64) for _ in "kv")
    store_kv(k, v, k_cache, v_cache, slots, form=form)
    guarded.check()
    for cache, new in ((k_cache, k), (v_cache, v)):
        flat = cache.flatten(0, 1)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                assert torch.equal(flat[slot], new[token])
        untouched = torch.ones(len(flat), dtype=torch.bool)
        untouched[slots[slots >= 0]] = False
        assert (flat[untouched] == 7).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slot", [-2, 32, 1000])
def test_slot_outside_the_cache_is_an_error(form, slot):
    cache = torch.zeros(2, 16, 1, 4)
    with pytest.raises(IndexError, match="leave the cache of 32 slots"):
        store_kv(torch.ones(2, 1, 4), torch.ones(2, 1, 4), cache, cache.clone(), torch.tensor([1, slot]), form=form)
    assert (cache == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.ones(3, 1, 4)}, "k is .* for 2 slots"),
        ({"v": torch.ones(2, 1, 5)}, "v is .* for 2 slots"),
        ({"v": torch.ones(2, 1, 4).half()}, "v is torch.float16"),
        ({"v_cache": torch.zeros(3, 16, 1, 4)}, "v is .* of a cache"),
        ({"k_cache": torch.zeros(2, 4, 1, 16).transpose(1, 3)}, "contiguous caches"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    arguments = {
        "k": torch.ones(2, 1, 4),
        "v": torch.ones(2, 1, 4),
        "k_cache": torch.zeros(2, 16, 1, 4),
        "v_cache": torch.zeros(2, 16, 1, 4),
        "slots": torch.tensor([1, 3]),
    }
    with pytest.raises(ValueError, match=message):
        store_kv(**(arguments | change))

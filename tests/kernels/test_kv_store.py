import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import DTYPES, require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.kv_store import store_kv

FORMS = ("reference", "cpu", "interpret")
FP8 = torch.float8_e4m3fn


class TestStoreKv(KernelSuite):
    kernel = "kv_store"
    mutants = {
        "32-bit pages": ("slot // BLOCK_SIZE, slot", "(slot // BLOCK_SIZE).to(tl.int32), slot"),
        "32-bit tokens": ("token = tl.program_id(0).to(tl.int64)", "token = tl.program_id(0)"),
        "skipped tokens written": ("if (slot < 0) | (slot >= num_slots):", "if slot >= num_slots:"),
        "pages next to each other": ("page * v_cache_stride_block", "page * BLOCK_SIZE * v_cache_stride_token"),
        "offset within the page": ("offset * k_cache_stride_token", "(offset ^ 1) * k_cache_stride_token"),
        "heads unmasked": ("(heads < NUM_HEADS)[:, None] &", "(heads >= 0)[:, None] &"),
        "dims unmasked": ("[:, None] & (dims < HEAD_DIM)", "[:, None] & (dims >= 0)"),
        "heads of the new tensor packed": ("wide_heads * new_stride_g", "wide_heads * HEAD_DIM"),
        "product with the scale": (
            "tl.div_rn(values.to(tl.float32), divisor.to(tl.float32))",
            "values.to(tl.float32) * divisor.to(tl.float32)",
        ),
        "reciprocal of the scale": (
            "tl.div_rn(values.to(tl.float32), divisor.to(tl.float32))",
            "values.to(tl.float32) * (1.0 / divisor.to(tl.float32))",
        ),
        "scale of the first head": ("tl.load(scale + heads,", "tl.load(scale + 0 * heads,"),
        "scale of k for v": ("v, v_cache, v_scale,", "v, v_cache, k_scale,"),
        "cut at half": ("LARGEST = tl.constexpr(448.0)", "LARGEST = tl.constexpr(224.0)"),
        "quantised twice": (
            "values = values.to(cache.dtype.element_ty)",
            "values = values.to(tl.bfloat16).to(cache.dtype.element_ty)",
        ),
    }


def caches(num_blocks=2, block_size=16, num_kv_heads=1, head_dim=4, dtype=torch.float32):
    return [torch.zeros(num_blocks, block_size, num_kv_heads, head_dim).to(dtype) for _ in "kv"]


@pytest.mark.parametrize("form", FORMS)
def test_known_places(form):
    """Slot 17 of pages of 16 is place 1 of page 1; −1 is no place."""
    require_form(form)
    k_cache, v_cache = caches()
    k = torch.arange(12.0).view(3, 1, 4) + 1
    store_kv(k, 10 * k, k_cache, v_cache, torch.tensor([17, -1, 3]), form=form)
    assert k_cache[1, 1, 0].tolist() == [1, 2, 3, 4] and v_cache[0, 3, 0].tolist() == [90, 100, 110, 120]
    assert int((k_cache != 0).sum()) == int((v_cache != 0).sum()) == 8


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slot", [-2, 32, 1000])
def test_slot_outside_the_cache_is_an_error(form, slot):
    require_form(form)
    k_cache, v_cache = caches()
    with pytest.raises(IndexError, match="leave the cache of 32 slots"):
        store_kv(torch.ones(2, 1, 4), torch.ones(2, 1, 4), k_cache, v_cache, torch.tensor([1, slot]), form=form)
    assert (k_cache == 0).all() and (v_cache == 0).all()


@pytest.mark.parametrize("slot", [-2, 32, 2**40])
def test_kernel_writes_nothing_outside_the_cache(slot):
    """On a GPU no slot is looked at before the launch."""
    pytest.importorskip("triton")
    from wholecurve.kernels.kv_store.kernel import launches
    from wholecurve.profiling.sanitizer import sanitize

    k_cache, v_cache = caches()
    started, _ = launches(torch.ones(2, 1, 4), torch.ones(2, 1, 4), k_cache, v_cache, torch.tensor([1, slot]))
    with sanitize(*started[0].tensors):
        started[0].run(interpreted=True)
    assert int(k_cache.sum()) == int(v_cache.sum()) == 4


@pytest.mark.parametrize("form", FORMS)
def test_pages_past_2_to_the_31_elements(form):
    """A cache of 2³¹ + 4096 elements, of which only the pages that are written take memory."""
    require_form(form)
    num_blocks, shape = 2**19 + 1, (16, 2, 128)
    big = torch.empty(num_blocks, *shape, dtype=FP8)
    small = torch.zeros(num_blocks, 16, 2, 1)
    k, v = torch.full((2, 2, 128), 3.0), torch.full((2, 2, 1), 5.0)
    last = num_blocks * 16 - 1
    big[-1].view(torch.uint8).zero_()
    store_kv(k, v, big, small, torch.tensor([last, last - 17]), form=form)
    assert (big[-1, -1].float() == 3).all() and (big[-1, :-1].float() == 0).all() and (big[-2, -2].float() == 3).all()
    assert small[-1, -1].tolist() == [[5.0], [5.0]]


@pytest.mark.parametrize("form", FORMS)
def test_pages_in_any_order_of_memory(form):
    """Heads outside tokens, and k beside v in one page."""
    require_form(form)
    plain = caches(3, 4, 2, 8)
    by_head = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in plain]
    paired = list(torch.zeros(3, 2, 4, 2, 8).unbind(1))
    k, v, slots = torch.randn(5, 2, 8), torch.randn(5, 2, 8), torch.tensor([11, 0, 6, -1, 3])
    for pair in (plain, by_head, paired):
        store_kv(k, v, *pair, slots, form=form)
    for cache, others in zip(plain, zip(by_head, paired)):
        assert all(torch.equal(cache, other) for other in others) and (cache != 0).any()


@pytest.mark.parametrize("form", ["reference", "cpu"])
def test_new_values_may_have_any_strides(form):
    """A strided last dimension too; the Triton form refuses that."""
    k_cache, v_cache = caches()
    k = torch.randn(4, 1, 3).transpose(0, 2)
    store_kv(k, k, k_cache, v_cache, torch.tensor([1, 2, 5]), form=form)
    assert torch.equal(k_cache[0, [1, 2, 5]], k)
    with pytest.raises(ValueError, match="last dimension of k is strided"):
        require_form("interpret")
        store_kv(k, k, k_cache, v_cache, torch.tensor([1, 2, 5]), form="interpret")


@pytest.mark.parametrize("form", FORMS)
def test_nan_goes_to_its_own_slot_only(form):
    require_form(form)
    for dtype in (torch.bfloat16, FP8):
        k_cache, v_cache = caches(dtype=dtype)
        k = torch.ones(2, 1, 4).bfloat16()
        k[1, 0, 2] = torch.nan
        store_kv(k, torch.ones_like(k), k_cache, v_cache, torch.tensor([4, 9]), form=form)
        assert k_cache.float().isnan().nonzero().tolist() == [[0, 9, 0, 2]] and not v_cache.float().isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_fp8_known_values(form, dtype):
    """Scaled, rounded to nearest even (1.0625 lies between 1 and 1.125), and cut to ±448, infinities too."""
    require_form(form)
    k_cache, v_cache = caches(head_dim=8, dtype=FP8)
    k = torch.tensor([[[1.0625, 1.1875, 500.0, -1e4, math.inf, -math.inf, 2**-10, 2**-9]]]).to(dtype)
    store_kv(k, 2 * k, k_cache, v_cache, torch.tensor([0]), form=form, k_scale=1.0, v_scale=4.0)
    assert k_cache[0, 0, 0].tolist() == [1.0, 1.25, 448, -448, 448, -448, 0, 2**-9]
    assert v_cache[0, 0, 0, :4].tolist() == [0.5, 0.625, 256.0, -448]
    again = caches(head_dim=8, dtype=FP8)
    store_kv(k, 2 * k, *again, torch.tensor([0]), form=form)
    assert again[0][0, 0, 0].tolist() == k_cache[0, 0, 0].tolist()  # no scale is a scale of one


@pytest.mark.parametrize("form", FORMS)
def test_every_head_has_its_own_scale(form):
    require_form(form)
    k_cache, v_cache = caches(num_kv_heads=3, dtype=FP8)
    k = torch.full((1, 3, 4), 12.0).bfloat16()
    scales = torch.tensor([1.0, 2.0, 0.01]), torch.tensor([6.0, 0.5, 3.0])
    store_kv(k, k, k_cache, v_cache, torch.tensor([2]), form=form, k_scale=scales[0], v_scale=scales[1])
    assert k_cache[0, 2, :, 0].tolist() == [12, 6, 448] and v_cache[0, 2, :, 0].tolist() == [2, 24, 4]


@pytest.mark.parametrize("form", FORMS)
def test_one_cache_may_be_quantised_alone(form):
    require_form(form)
    k_cache, v_cache = caches(dtype=FP8)[0], caches(dtype=torch.bfloat16)[1]
    k = torch.full((1, 1, 4), 1.0625).bfloat16()
    store_kv(k, k, k_cache, v_cache, torch.tensor([2]), form=form)
    assert k_cache[0, 2, 0, 0].item() == 1.0 and v_cache[0, 2, 0, 0].item() == 1.0625


@given(st.lists(st.floats(width=32), min_size=4, max_size=4), st.floats(1e-6, 1e6))
def test_fp8_is_the_nearest_number_of_the_range(values, scale):
    """Against ml_dtypes, whose conversion has no range to be cut to."""
    k_cache, v_cache = caches(dtype=FP8)
    k = torch.tensor(values).view(1, 1, 4)
    store_kv(k, k, k_cache, v_cache, torch.tensor([0]), k_scale=scale)
    with np.errstate(over="ignore", invalid="ignore"):
        divided = np.array(values, np.float32) / np.float32(scale)
    right = np.clip(divided, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(k_cache[0, 0, 0].float().numpy(), right, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.ones(3, 1, 4)}, "k is .* for 2 slots"),
        ({"v": torch.ones(2, 1, 5)}, "v is .* for 2 slots"),
        ({"v": torch.ones(2, 1, 4).half()}, "v is torch.float16"),
        ({"v_cache": torch.zeros(3, 16, 1, 4)}, "v is .* of a cache"),
        ({"v_cache": torch.zeros(2, 16, 2, 4), "v": torch.ones(2, 2, 4)}, "v is .* of a cache"),
        ({"k_cache": torch.zeros(2, 4, 1, 16).transpose(1, 3)}, "last dimension of k_cache is strided"),
        ({"slots": torch.tensor([1, 3], dtype=torch.int32)}, "slots must be int64"),
        ({"k_scale": 2.0}, "k_scale is for torch.float8_e4m3fn caches"),
        ({"k_cache": torch.zeros(2, 16, 1, 4).to(FP8), "k_scale": 0.0}, "k_scale must be above 0"),
        ({"v_cache": torch.zeros(2, 16, 1, 4).to(FP8), "v_scale": torch.ones(2)}, "v_scale must be a float or \\[1\\]"),
        ({"v_cache": torch.zeros(2, 16, 1, 4).to(FP8), "v_scale": torch.ones(1).half()}, "v_scale must be a float"),
        ({"form": "cuda"}, "does not exist"),
        ({"form": "interpret", "slots": torch.tensor([1, 3, 5, 7])[::2]}, "slots must be contiguous"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    require_form(change.get("form"))
    arguments = {
        "k": torch.ones(2, 1, 4),
        "v": torch.ones(2, 1, 4),
        "k_cache": torch.zeros(2, 16, 1, 4),
        "v_cache": torch.zeros(2, 16, 1, 4),
        "slots": torch.tensor([1, 3]),
    }
    with pytest.raises(ValueError, match=message):
        store_kv(**(arguments | change))

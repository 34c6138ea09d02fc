import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.gated_delta_decode import gated_delta_decode
from wholecurve.kernels.gated_delta_decode.subject import SUBJECT

FORMS = ("reference", "cpu", "interpret")
NO_SLOT = torch.tensor([-1], dtype=torch.int32)
every_form = pytest.mark.parametrize("form", FORMS)


class TestGatedDeltaDecode(KernelSuite):
    kernel = "gated_delta_decode"
    mutants = {
        "values add up instead of replacing": ("value - tl.sum(held * key[:, None], axis=0)", "value"),
        "no decay": ("held = held * decay", "held = held * 1.0"),
        "output before the update": (
            ("        held = held + key[:, None] * (error * rate)[None, :]\n", ""),
            (
                "axis=0)\n        answer",
                "axis=0)\n        held = held + key[:, None] * (error * rate)[None, :]\n        answer",
            ),
        ),
        "query not normalised": ("query = query * tl.rsqrt(tl.sum(query * query) + EPS)", "query = query * 1.0"),
        "norm over the tile of the next head": (
            "key = tl.load(key + rows, mask=row_inside, other=0.0)",
            "key = tl.load(key + rows, mask=rows < BLOCK_K, other=0.0)",
        ),
        "a reused slot leaks": ("present & (tl.load(has_initial_state + sequence) != 0)", "present"),
        "-1 writes slot 0": (
            "tl.store(block + slot * state_stride, held, mask=inside & (slot >= 0))",
            "tl.store(block + tl.maximum(slot, 0) * state_stride, held, mask=inside)",
        ),
        "every draft in the slot of the first": ("tl.load(write_slots + row)", "tl.load(write_slots + row - token)"),
        "heads of another group": ("key_head = head // GROUP", "key_head = head % (tl.num_programs(1) // GROUP)"),
        "32-bit slots": ("slot = tl.load(slots + sequence).to(tl.int64)", "slot = tl.load(slots + sequence)"),
    }


def step(q, k, v, g, beta, state, form, slots=None, **options):
    """One token of one sequence with one head in float32; the state is in slot 0."""
    rows = (torch.tensor(tensor, dtype=torch.float32).view(1, 1, -1) for tensor in (q, k, v))
    rates = (torch.tensor([[rate]], dtype=torch.float32) for rate in (g, beta))
    slots = torch.tensor([0], dtype=torch.int32) if slots is None else slots
    return gated_delta_decode(*rows, *rates, state, slots, 1.0, form=form, **options)[0, 0].tolist()


@every_form
def test_the_delta_rule_by_hand(form):
    require_form(form)
    state = torch.zeros(1, 1, 2, 2)
    assert step([1, 0], [1, 0], [2, 3], 0.0, 1.0, state, form) == [2.0, 3.0]
    assert state[0, 0].tolist() == [[2.0, 3.0], [0.0, 0.0]]
    # the same key: replaced, not [7, 8]
    assert step([1, 0], [1, 0], [5, 5], 0.0, 1.0, state, form) == [5.0, 5.0]
    assert state[0, 0].tolist() == [[5.0, 5.0], [0.0, 0.0]]
    # another key leaves it alone, and half a rate moves half of the way
    assert step([1, 1], [0, 1], [4, 8], 0.0, 0.5, state, form) == [7.0, 9.0]
    assert state[0, 0].tolist() == [[5.0, 5.0], [2.0, 4.0]]


@every_form
def test_decay_comes_before_the_update(form):
    require_form(form)
    state = torch.tensor([[[[8.0, 4.0], [2.0, 6.0]]]])
    # half of row 0 is [4, 2]; rate 1/2 moves it half of the way to [0, 0]
    assert step([1, 0], [1, 0], [0, 0], math.log(0.5), 0.5, state, form) == pytest.approx([2.0, 1.0], rel=1e-6)
    assert state.flatten().tolist() == pytest.approx([2.0, 1.0, 1.0, 3.0], rel=1e-6)


@every_form
def test_without_a_rate_the_state_only_decays(form):
    require_form(form)
    start = torch.randn(1, 1, 2, 3)
    state = start.clone()
    step([1, 0], [0.6, 0.8], [1, 2, 3], math.log(0.25), 0.0, state, form)
    assert torch.allclose(state, start / 4, rtol=1e-6)
    state = start.clone()
    step([1, 0], [0.6, 0.8], [1, 2, 3], 0.0, 0.0, state, form)
    assert torch.equal(state, start)


@every_form
def test_infinite_decay_clears_the_state(form):
    require_form(form)
    state = torch.randn(1, 1, 2, 2)
    assert step([1, 0], [1, 0], [2, 3], -math.inf, 1.0, state, form) == [2.0, 3.0]
    assert state[0, 0].tolist() == [[2.0, 3.0], [0.0, 0.0]]


@every_form
def test_keys_are_rows_and_values_are_columns(form):
    require_form(form)
    state = torch.zeros(1, 1, 3, 2)
    step([0, 0, 0], [0, 1, 0], [4, 7], 0.0, 1.0, state, form)
    assert state[0, 0].tolist() == [[0.0, 0.0], [4.0, 7.0], [0.0, 0.0]]


@every_form
def test_scale_and_norm(form):
    require_form(form)
    state = torch.zeros(1, 1, 2, 1)
    assert step([3, 4], [3, 4], [10], 0.0, 1.0, state, form, l2norm=True) == pytest.approx([10.0], rel=1e-6)
    assert state.flatten().tolist() == pytest.approx([6.0, 8.0], rel=1e-6)
    # a key of zeros stays one: 0 · 1 / sqrt(1e-6)
    assert step([1, 0], [0, 0], [10], 0.0, 1.0, state, form, l2norm=True) == pytest.approx([6.0], rel=1e-6)
    arguments = SUBJECT.arguments({"dtype": "float32"} | SUBJECT.spec.TESTS[2])
    twice = SUBJECT.arguments({"dtype": "float32"} | SUBJECT.spec.TESTS[2])
    twice["scale"] *= 2
    once, doubled = SUBJECT.run(arguments, form), SUBJECT.run(twice, form)
    assert torch.allclose(once[0] * 2, doubled[0], rtol=1e-6, equal_nan=True)
    assert torch.equal(once[1].nan_to_num(), doubled[1].nan_to_num())


def arguments_of(num_sequences=3, num_tokens=1, heads=(2, 4), sizes=(24, 40), dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    rows = (num_sequences, num_tokens)
    return {
        "q": normal(*rows, heads[0], sizes[0]).to(dtype),
        "k": normal(*rows, heads[0], sizes[0]).to(dtype),
        "v": normal(*rows, heads[1], sizes[1]).to(dtype),
        "g": -torch.rand(*rows, heads[1], generator=generator),
        "beta": torch.rand(*rows, heads[1], generator=generator).to(dtype),
        "state": normal(num_sequences, heads[1], *sizes),
        "slots": torch.arange(num_sequences, dtype=torch.int32),
        "scale": sizes[0] ** -0.5,
        "l2norm": True,
    }


def of_rows(arguments, sequences=None, tokens=None):
    """The arguments of some sequences or of some tokens, with a state of their own."""
    chosen = dict(arguments, state=arguments["state"].clone())
    for name in ("q", "k", "v", "g", "beta", "slots"):
        if sequences is not None:
            chosen[name] = chosen[name][sequences]
        if tokens is not None and name != "slots":
            chosen[name] = chosen[name][:, tokens]
    return chosen


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_sequence_does_not_depend_on_its_batch(form, dtype):
    require_form(form)
    arguments = arguments_of(5, 2, dtype=dtype)
    together = of_rows(arguments)
    out = gated_delta_decode(**together, form=form)
    for chosen in ([0], [4], [3, 1]):
        alone = of_rows(arguments, chosen)
        assert torch.equal(gated_delta_decode(**alone, form=form), out[chosen])
        assert torch.equal(alone["state"][chosen], together["state"][chosen])


@every_form
def test_tokens_at_once_are_tokens_one_by_one(form):
    require_form(form)
    arguments = arguments_of(3, 4)
    together = of_rows(arguments)
    out = gated_delta_decode(**together, form=form)
    for token in range(4):
        one = of_rows(arguments, tokens=slice(token, token + 1))
        assert torch.equal(gated_delta_decode(**one, form=form), out[:, token : token + 1])
        arguments["state"] = one["state"]
    assert torch.equal(one["state"], together["state"])
    # and one token needs no dimension for it
    flat = {name: one[name][:, 0] for name in ("q", "k", "v", "g", "beta")}
    again = gated_delta_decode(**dict(one, state=together["state"].clone()), form=form)
    flat = gated_delta_decode(**dict(one, state=together["state"].clone(), **flat), form=form)
    assert flat.shape == (3, 4, 40) and torch.equal(flat, again[:, 0])


@every_form
def test_rejected_drafts_roll_back(form):
    """The state after n accepted tokens is that of a step with n tokens, whatever the drafts after them were."""
    require_form(form)
    arguments = arguments_of(3, 4)
    before = arguments["state"]
    slots = torch.tensor([7, 2, 9])
    write_slots = torch.tensor([[0, 1, 3, 4], [5, 6, 2, 8], [10, 11, 12, 13]])  # 2: a slot may be read and reused
    state = torch.full((14, *before.shape[1:]), math.nan)
    state[slots] = before
    drafted = gated_delta_decode(**dict(arguments, state=state, slots=slots), write_slots=write_slots, form=form)
    assert torch.equal(state[7], before[0]) and torch.equal(state[9], before[2])
    for accepted in range(1, 5):
        kept = of_rows(arguments, tokens=slice(accepted))
        assert torch.equal(gated_delta_decode(**kept, form=form), drafted[:, :accepted])
        assert torch.equal(state[write_slots[:, accepted - 1]], kept["state"])


@every_form
def test_one_kept_state_and_two_readers_of_a_slot(form):
    require_form(form)
    arguments = arguments_of(2, 3)
    state = torch.full((4, *arguments["state"].shape[1:]), math.nan)
    state[3] = arguments["state"][0]
    write_slots = torch.tensor([[-1, 1, -1], [-1, -1, 0]])
    shared = dict(arguments, state=state, slots=torch.tensor([3, 3]))
    gated_delta_decode(**shared, write_slots=write_slots, form=form)
    assert state[2].isnan().all() and torch.equal(state[3], arguments["state"][0])
    for sequence, tokens, slot in ((0, 2, 1), (1, 3, 0)):
        alone = of_rows(arguments, [sequence], slice(tokens))
        alone["state"], alone["slots"] = arguments["state"][:1].clone(), torch.tensor([0])
        gated_delta_decode(**alone, form=form)
        assert torch.equal(alone["state"][0], state[slot])


@every_form
def test_a_slot_of_a_finished_request_does_not_leak(form):
    require_form(form)
    arguments = arguments_of(2)
    zeros = dict(arguments, state=torch.zeros_like(arguments["state"]))
    reused = dict(arguments, state=torch.full_like(arguments["state"], math.nan))
    out = gated_delta_decode(**zeros, form=form)
    assert torch.equal(gated_delta_decode(**reused, form=form, has_initial_state=torch.tensor([False, False])), out)
    assert torch.equal(zeros["state"], reused["state"])
    untouched = dict(arguments, state=torch.full_like(arguments["state"], math.nan), slots=NO_SLOT.expand(2).clone())
    assert torch.equal(gated_delta_decode(**untouched, form=form), out)
    assert untouched["state"].isnan().all()


@every_form
def test_nan_stays_in_its_sequence(form):
    require_form(form)
    arguments = arguments_of(3)
    clean = gated_delta_decode(**of_rows(arguments), form=form)
    arguments["v"][1, 0, 2, 5] = math.nan
    out = gated_delta_decode(**arguments, form=form)
    assert torch.equal(out[[0, 2]], clean[[0, 2]])
    assert out.isnan().nonzero().tolist() == [[1, 0, 2, 5]]


@every_form
def test_views_of_a_fused_projection_and_of_a_pool(form):
    require_form(form)
    arguments = arguments_of(3, 2)
    rows = torch.cat([arguments[name].flatten(2) for name in "qkv"], dim=-1)
    views = (
        rows[..., :48].unflatten(2, (2, 24)),
        rows[..., 48:96].unflatten(2, (2, 24)),
        rows[..., 96:].unflatten(2, (4, 40)),
    )
    pool = torch.full((3, 5, 4, 24, 40), math.nan)  # [slots, layers, HV, K, V]
    pool[:, 2] = arguments["state"]
    rates = torch.stack((arguments["g"], arguments["beta"]), dim=2)
    viewed = dict(zip("qkv", views), g=rates[:, :, 0], beta=rates[:, :, 1], state=pool[:, 2])
    for indexes in (torch.int32, torch.int64):
        own = of_rows(arguments)
        own["slots"] = own["slots"].to(indexes)
        out = gated_delta_decode(**own, form=form)
        assert torch.equal(gated_delta_decode(**dict(arguments, **viewed), form=form), out)
        assert torch.equal(pool[:, 2], own["state"]) and pool[:, [0, 1, 3, 4]].isnan().all()
        pool[:, 2] = arguments["state"]


@every_form
def test_nothing_to_do(form):
    require_form(form)
    empty = of_rows(arguments_of(2, 2), tokens=slice(0))
    assert gated_delta_decode(**empty, form=form).shape == (2, 0, 4, 40)
    assert torch.equal(empty["state"], arguments_of(2, 2)["state"])
    assert gated_delta_decode(**of_rows(arguments_of(2), []), form=form).shape == (0, 1, 4, 40)


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_cpu_form_is_the_reference(seed, num_tokens, heads, group, key_dim, value_dim):
    arguments = arguments_of(2, num_tokens, (heads, heads * group), (key_dim, value_dim), torch.float64, seed)
    arguments |= {"g": arguments["g"].double() * 60, "state": arguments["state"].double()}
    one, other = of_rows(arguments), of_rows(arguments)
    wanted, found = gated_delta_decode(**one, form="reference"), gated_delta_decode(**other, form="cpu")
    assert torch.allclose(wanted, found, rtol=1e-10, atol=1e-12)
    assert torch.allclose(one["state"], other["state"], rtol=1e-10, atol=1e-12)


@every_form
def test_agrees_with_transformers(form):
    require_form(form)
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    arguments = arguments_of(2, 3)
    wanted, state = modeling.torch_recurrent_gated_delta_rule(
        *(arguments[name] for name in ("q", "k", "v", "g", "beta")),
        initial_state=arguments["state"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    assert torch.allclose(gated_delta_decode(**arguments, form=form), wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(arguments["state"], state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(3, 1, 2, 25)}, "q, k and v have shapes"),
        ({"v": torch.ones(3, 1, 3, 40)}, "3 value heads are no multiple of 2"),
        ({"v": torch.ones(3, 2, 4, 40)}, "q, k and v have shapes"),
        ({"v": torch.ones(3, 1, 4, 40).half()}, "must have one dtype"),
        ({"g": torch.ones(3, 1, 2)}, "g must be"),
        ({"g": torch.ones(3, 1, 4).half()}, "g and state must be torch.float32"),
        ({"beta": torch.ones(3, 4)}, "beta must be"),
        ({"beta": torch.ones(3, 1, 4).half()}, "and beta torch.float32"),
        ({"state": torch.ones(3, 4, 40, 24)}, r"state must be \[slots, 4, 24, 40\]"),
        ({"state": torch.ones(3, 4, 24, 40).half()}, "g and state must be"),
        ({"slots": torch.tensor([0, 1])}, r"slots must be \[3\]"),
        ({"slots": torch.tensor([0.0, 1.0, 2.0])}, "slots must be int32 or int64"),
        ({"slots": torch.tensor([0, 1, 1])}, "slot 1 is written twice"),
        ({"has_initial_state": torch.ones(3)}, "has_initial_state must be"),
        ({"has_initial_state": torch.ones(2, dtype=torch.bool)}, "has_initial_state must be"),
        ({"write_slots": torch.zeros(3, 2, dtype=torch.int32)}, r"write_slots must be \[3, 1\]"),
        ({"write_slots": torch.tensor([[0], [0], [-1]])}, "slot 0 is written twice"),
        ({"write_slots": torch.tensor([[1], [0], [-1]])}, "slot 0 is read for sequence 0 and written for sequence 1"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        gated_delta_decode(**(arguments_of() | change))


@pytest.mark.parametrize("slots", [[0, 1, 3], [0, -2, 1]])
def test_slots_that_do_not_exist(slots):
    with pytest.raises(IndexError, match="does not exist, there are 3"):
        gated_delta_decode(**(arguments_of() | {"slots": torch.tensor(slots)}))
    with pytest.raises(IndexError, match="does not exist, there are 3"):
        gated_delta_decode(**arguments_of(), write_slots=torch.tensor(slots)[:, None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(3, 1, 2, 48)[..., ::2]}, "last dimension of q is strided"),
        ({"state": torch.ones(3, 4, 40, 24).transpose(2, 3)}, "each slot of state must be contiguous"),
        ({"slots": torch.tensor([0, 0, 1, 0, 2])[::2]}, "slots must be contiguous"),
    ],
)
def test_triton_form_refuses_strides(change, message):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=message):
        gated_delta_decode(**(arguments_of() | change), form="interpret")


def test_triton_form_refuses_other_dtypes_and_sizes():
    pytest.importorskip("triton")
    wide = arguments_of(dtype=torch.float64)
    wide |= {"g": wide["g"].double(), "state": wide["state"].double()}
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        gated_delta_decode(**wide, form="interpret")
    with pytest.raises(ValueError, match="keys up to 256"):
        gated_delta_decode(**arguments_of(sizes=(257, 8)), form="interpret")

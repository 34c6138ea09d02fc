import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.gated_delta_decode import gated_delta_decode
from wholecurve.kernels.gated_delta_prefill import gated_delta_prefill
from wholecurve.kernels.gated_delta_prefill.spec import CHUNK, chunk_places
from wholecurve.profiling.gate import agreement

FORMS = ("reference", "cpu", "interpret")
CHUNKED = ("cpu", "interpret")
TOKENS = ("q", "k", "v", "g", "beta")
every_form = pytest.mark.parametrize("form", FORMS)


class TestGatedDeltaPrefill(KernelSuite):
    kernel = "gated_delta_prefill"
    mutants = {
        "a short last chunk decays to row 63": (
            "last = tl.minimum(first + CHUNK, end) - 1",
            "last = tl.minimum(first + CHUNK, end + CHUNK) - 1",
        ),
        "a reused slot leaks": ("present & (tl.load(has_initial_state + sequence) != 0)", "present"),
        "-1 writes slot 0": (
            "tl.store(owned, held, mask=inside & (slot >= 0))",
            "tl.store(owned + (tl.maximum(slot, 0) - slot) * state_stride, held, mask=inside)",
        ),
        "an empty sequence clears its slot": ("if end <= first:", "if end < first:"),
        "no decay inside a chunk": ("system = products * tl.exp(pairs) *", "system = products *"),
        "keys without the decay after them": ("tl.exp(after) * norm", "norm"),
        "keys without their norm in the state": ("tl.exp(after) * norm", "tl.exp(after)"),
        "an output without its own token": (
            "rows[:, None] >= rows[None, :], weights",
            "rows[:, None] > rows[None, :], weights",
        ),
        "corner of the inverse has the wrong sign": ("-corner[None, :, None, :]", "corner[None, :, None, :]"),
        "last row of a half is not solved": ("range(1, HALF)", "range(1, HALF - 1)"),
        "the last chunk of a sequence is dropped": ("tl.cdiv(end - first, CHUNK)", "((end - first) // CHUNK)"),
        "sequences share a place": (
            "starts // CHUNK + sequences <= place",
            "starts // CHUNK <= place",
        ),
        "heads of another group in the state": (
            "        keys = k + tokens[:, None] * k_stride_t + head // GROUP * k_stride_h",
            "        keys = k + tokens[:, None] * k_stride_t + head % (num_heads // GROUP) * k_stride_h",
        ),
        "the state does not decay": ("held * tl.load(decays + last * num_heads + head)", "held"),
        "32-bit heads": (
            "sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)",
            "sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)",
        ),
    }


def arguments_of(lengths, heads=(1, 1), sizes=(24, 40), dtype=torch.float32, seed=0, decay=0.1):
    """Sequences of these lengths in slots of their own; log decays from −decay to 0."""
    generator, tokens = torch.Generator().manual_seed(seed), sum(lengths)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    wide = torch.promote_types(dtype, torch.float32)
    return {
        "q": normal(tokens, heads[0], sizes[0]).to(dtype),
        "k": normal(tokens, heads[0], sizes[0]).to(dtype),
        "v": normal(tokens, heads[1], sizes[1]).to(dtype),
        "g": -decay * torch.rand(tokens, heads[1], generator=generator, dtype=wide),
        "beta": torch.rand(tokens, heads[1], generator=generator, dtype=wide),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
        "state": normal(len(lengths), heads[1], *sizes).to(wide),
        "slots": torch.arange(len(lengths), dtype=torch.int32),
        "scale": sizes[0] ** -0.5,
        "l2norm": True,
    }


def run(arguments, form, **changes):
    """(out, state after) of a call that leaves `arguments` as they are."""
    arguments = arguments | changes
    state = arguments["state"].clone()
    return gated_delta_prefill(**dict(arguments, state=state), form=form), state


def piece(arguments, first, last, state):
    """Tokens first … last − 1 of a single sequence, on top of `state`."""
    cut = {name: arguments[name][first:last] for name in TOKENS}
    return arguments | cut | {"cu_seqlens": torch.tensor([0, last - first]), "state": state}


def assert_close(found, wanted, units):
    """Within units of fp32 eps of the largest of each row."""
    for one, other in zip(found, wanted, strict=True):
        result = agreement(one, other.double(), ulps=units)
        assert result, result


@pytest.mark.parametrize("form", CHUNKED)
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129])
def test_chunks_are_the_recurrence(form, length):
    require_form(form)
    arguments = arguments_of([length])
    assert_close(run(arguments, form), run(arguments, "reference"), units=30)


@pytest.mark.parametrize("length", [1, 64, 65, 129])
def test_chunks_are_the_recurrence_in_float64(length):
    arguments = arguments_of([length, 3], dtype=torch.float64)
    for found, wanted in zip(run(arguments, "cpu"), run(arguments, "reference")):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-13)


@every_form
def test_the_delta_rule_by_hand(form):
    require_form(form)
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[:, None]
    values = torch.tensor([[2.0, 3.0], [5.0, 5.0], [7.0, 9.0]])[:, None]
    arguments = arguments_of([3], (1, 1), (2, 2)) | {"q": rows, "k": rows, "v": values, "scale": 1.0, "l2norm": False}
    arguments |= {"g": torch.zeros(3, 1), "beta": torch.ones(3, 1), "state": torch.zeros(1, 1, 2, 2)}
    out, state = run(arguments, form)
    assert out[:, 0].tolist() == [[2.0, 3.0], [5.0, 5.0], [7.0, 9.0]]
    assert state[0, 0].tolist() == [[5.0, 5.0], [7.0, 9.0]]


@every_form
@pytest.mark.parametrize("strength", [50.0, math.inf])
def test_strong_decays(form, strength):
    """−50 a token: exp of the other triangle would overflow. −inf: the state starts anew, later tokens decay by their
    own g alone.
    """
    require_form(form)
    arguments = arguments_of([70, 5])
    arguments["g"][3] = arguments["g"][20] = arguments["g"][66] = -strength
    if strength == 50.0:
        arguments["g"][30:50] = -strength
    out, state = run(arguments, form)
    assert out.isfinite().all() and state.isfinite().all()
    assert_close((out, state), run(arguments, "reference"), units=30)
    if strength == math.inf:
        fresh = piece(
            arguments_of([70]) | {name: arguments[name][:70] for name in TOKENS}, 20, 70, torch.zeros(1, 1, 24, 40)
        )
        fresh_out, fresh_state = run(fresh, form)
        assert_close((out[20:70], state[:1]), (fresh_out, fresh_state), units=30)


@every_form
def test_equal_keys_replace_each_other(form):
    """Rate 1 and one key again and again: the inverse has a single diagonal, its powers would have billions."""
    require_form(form)
    arguments = arguments_of([129])
    arguments |= {"k": arguments["k"][:1].expand(129, 1, 24).contiguous(), "g": torch.zeros(129, 1)}
    arguments["beta"].fill_(1.0)
    arguments |= {"q": arguments["k"], "scale": 1.0}
    out, state = run(arguments, form)
    assert torch.allclose(out, arguments["v"], rtol=1e-5, atol=2e-5)
    key = torch.nn.functional.normalize(arguments["k"][-1, 0], dim=0)
    found = torch.einsum("k,hkv->hv", key, state[0])
    assert torch.allclose(found, arguments["v"][-1], rtol=1e-5, atol=2e-5)


@every_form
@pytest.mark.parametrize("cut", [6, 64, 65])
def test_a_sequence_may_come_in_pieces(form, cut):
    require_form(form)
    arguments = arguments_of([130])
    whole = run(arguments, form)
    first, state = run(piece(arguments, 0, cut, arguments["state"]), form)
    second, state = run(piece(arguments, cut, 130, state), form)
    pieces = torch.cat((first, second)), state
    if cut % CHUNK == 0 and form == "interpret":
        assert torch.equal(pieces[0], whole[0]) and torch.equal(pieces[1], whole[1])
    assert_close(pieces, whole, units=30)


@every_form
def test_decode_continues_a_prefill(form):
    require_form(form)
    arguments = arguments_of([66])
    whole = run(arguments, "reference")
    first, state = run(piece(arguments, 0, 64, arguments["state"]), form)
    rest = {name: arguments[name][None, 64:] for name in TOKENS}
    common = {name: arguments[name] for name in ("slots", "scale", "l2norm")}
    second = gated_delta_decode(**rest, **common, state=state, form=form)
    assert_close((torch.cat((first, second[0])), state), whole, units=30)


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_sequence_does_not_depend_on_its_batch(form, dtype):
    require_form(form)
    lengths = [5, 0, 70, 64, 1]
    arguments = arguments_of(lengths, dtype=dtype)
    out, state = run(arguments, form)
    bounds = arguments["cu_seqlens"].tolist()
    for sequence, length in enumerate(lengths):
        rows = slice(bounds[sequence], bounds[sequence + 1])
        alone = {name: arguments[name][rows] for name in TOKENS}
        alone |= {"cu_seqlens": torch.tensor([0, length]), "slots": arguments["slots"][sequence, None]}
        out_alone, state_alone = run(arguments | alone, form)
        assert torch.equal(out_alone, out[rows]) and torch.equal(state_alone[sequence], state[sequence])


@every_form
def test_empty_sequences_leave_their_slots(form):
    require_form(form)
    arguments = arguments_of([0, 3, 0])
    flags = torch.tensor([True, True, False])
    state = run(arguments, form, has_initial_state=flags)[1]
    assert torch.equal(state[[0, 2]], arguments["state"][[0, 2]])
    assert not torch.equal(state[1], arguments["state"][1])
    out, state = run(arguments_of([0, 0]), form)
    assert out.shape == (0, 1, 40) and torch.equal(state, arguments_of([0, 0])["state"])
    assert run(arguments_of([]), form)[0].shape == (0, 1, 40)


@every_form
def test_a_slot_of_a_finished_request_does_not_leak(form):
    require_form(form)
    arguments = arguments_of([65, 2])
    zeros = torch.zeros_like(arguments["state"])
    used = torch.full_like(zeros, math.nan)
    out, state = run(arguments, form, state=zeros)
    out_used, state_used = run(arguments, form, state=used, has_initial_state=torch.tensor([False, False]))
    assert torch.equal(out_used, out) and torch.equal(state_used, state)
    out_none, state_none = run(arguments, form, state=used, slots=torch.tensor([-1, -1]))
    assert torch.equal(out_none, out) and state_none.isnan().all()


@every_form
def test_nan_stays_in_its_sequence(form):
    require_form(form)
    arguments = arguments_of([3, 66, 4])
    clean, _ = run(arguments, form)
    for name in ("q", "k", "v"):
        arguments[name][3:69] = math.nan
    out, state = run(arguments, form)
    assert torch.equal(out[:3], clean[:3]) and torch.equal(out[69:], clean[69:])
    assert state[1].isnan().all() and not state[[0, 2]].isnan().any()


@every_form
def test_views_of_a_fused_projection_and_of_a_pool(form):
    require_form(form)
    arguments = arguments_of([5, 66], (2, 2))
    rows = torch.cat([arguments[name].flatten(1) for name in "qkv"], dim=-1)
    views = (
        rows[:, :48].unflatten(1, (2, 24)),
        rows[:, 48:96].unflatten(1, (2, 24)),
        rows[:, 96:].unflatten(1, (2, 40)),
    )
    pool = torch.full((2, 3, 2, 24, 40), math.nan)  # [slots, layers, HV, K, V]
    pool[:, 1] = arguments["state"]
    rates = torch.stack((arguments["g"], arguments["beta"]), dim=1)
    viewed = arguments | dict(zip("qkv", views)) | {"g": rates[:, 0], "beta": rates[:, 1], "state": pool[:, 1]}
    viewed |= {"cu_seqlens": arguments["cu_seqlens"].long(), "slots": arguments["slots"].long()}
    out, state = run(arguments, form)
    assert torch.equal(gated_delta_prefill(**viewed, form=form), out)
    assert torch.equal(pool[:, 1], state) and pool[:, [0, 2]].isnan().all()


@pytest.mark.parametrize("form", CHUNKED)
@pytest.mark.parametrize("length", [1, 65])
def test_agrees_with_transformers(form, length):
    require_form(form)
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    arguments = arguments_of([length], (2, 4))
    wanted, state = modeling.torch_chunk_gated_delta_rule(
        *(arguments[name][None] for name in TOKENS),
        initial_state=arguments["state"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out, reached = run(arguments, form)
    assert torch.allclose(out, wanted[0], rtol=1e-4, atol=1e-5) and torch.allclose(reached, state, rtol=1e-4, atol=1e-5)


@settings(max_examples=25)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 140), max_size=4),
    st.integers(1, 3),
    st.floats(0, 80),
)
def test_cpu_form_is_the_reference(seed, lengths, group, decay):
    arguments = arguments_of(lengths, (2, 2 * group), (12, 9), torch.float64, seed, decay)
    for found, wanted in zip(run(arguments, "cpu"), run(arguments, "reference")):
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-11)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_places_hold_the_chunks_of_any_sequences(lengths):
    """Sequence b at cu_seqlens[b] // CHUNK + b: enough for its chunks, and within the grid."""
    bounds = [sum(lengths[:sequence]) for sequence in range(len(lengths) + 1)]
    starts = [start // CHUNK + sequence for sequence, start in enumerate(bounds[:-1])] + [
        chunk_places(bounds[-1], len(lengths))
    ]
    for sequence, length in enumerate(lengths):
        if bounds[-1]:
            assert starts[sequence] + -(-length // CHUNK) <= starts[sequence + 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(1, 7, 1, 24)}, r"q must be \[tokens, heads, head size\]"),
        ({"k": torch.ones(6, 1, 24)}, "q, k and v have shapes"),
        ({"g": torch.ones(7, 3)}, "g must be"),
        ({"state": torch.ones(2, 1, 40, 24)}, r"state must be \[slots, 1, 24, 40\]"),
        ({"slots": torch.tensor([1, 1])}, "slot 1 is written twice"),
        ({"slots": torch.tensor([[1, 0]])}, r"slots must be \[sequences\]"),
        ({"cu_seqlens": torch.tensor([0, 7])}, r"cu_seqlens must be \[3\]"),
        ({"cu_seqlens": torch.tensor([0.0, 5.0, 7.0])}, "cu_seqlens must be"),
        ({"cu_seqlens": torch.tensor([0, 8, 7])}, "must ascend from 0 to 7"),
        ({"cu_seqlens": torch.tensor([0, 5, 6])}, "must ascend from 0 to 7"),
        ({"cu_seqlens": torch.tensor([1, 5, 7])}, "must ascend from 0 to 7"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        gated_delta_prefill(**(arguments_of([5, 2]) | change))


def test_slots_that_do_not_exist():
    with pytest.raises(IndexError, match="slot 2 does not exist, there are 2"):
        gated_delta_prefill(**(arguments_of([5, 2]) | {"slots": torch.tensor([0, 2])}))


def test_triton_form_refuses_what_it_cannot_do():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="last dimension of k is strided"):
        run(arguments_of([5, 2]) | {"k": torch.ones(7, 1, 48)[..., ::2]}, "interpret")
    with pytest.raises(ValueError, match="cu_seqlens must be contiguous"):
        run(arguments_of([5, 2]) | {"cu_seqlens": torch.tensor([0, 0, 5, 0, 7])[::2]}, "interpret")
    with pytest.raises(ValueError, match="keys up to 256"):
        run(arguments_of([2], sizes=(257, 8)), "interpret")

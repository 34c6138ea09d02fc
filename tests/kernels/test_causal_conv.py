import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.causal_conv import causal_conv
from wholecurve.kernels.causal_conv.spec import places

FORMS = ("reference", "cpu", "interpret")
every_form = pytest.mark.parametrize("form", FORMS)


class TestCausalConv(KernelSuite):
    kernel = "causal_conv"
    mutants = {
        "a reused slot leaks": ("present & (tl.load(has_initial_state + sequence) != 0)", "present"),
        "taps in the other order": ("weight + channels * WIDTH + tap", "weight + channels * WIDTH + (WIDTH - 1 - tap)"),
        "tokens of the sequence before": (
            "mask=inside & (source >= start), other",
            "mask=inside & (source >= 0), other",
        ),
        "the carried inputs are forgotten": (
            "            if first == start:\n                carried",
            "            if first > end:\n                carried",
        ),
        "no dilation": ("(tokens - (WIDTH - 1 - tap) * DILATION)", "(tokens - (WIDTH - 1 - tap))"),
        "no activation": ("answer = answer * tl.sigmoid(answer)", "answer = answer * 1.0"),
        "no bias": ("answer += tl.load(bias", "answer += 0 * tl.load(bias"),
        "states of drafts are one token old": ("steps.to(tl.int64) + 1", "steps.to(tl.int64)"),
        "a short sequence drops what it carried": ("(age < 0) & present", "(age < -HISTORY) & present"),
        "states of drafts that are not there": ("(steps < num_kept) & (steps < end - start)", "(steps < num_kept)"),
        "-1 writes slot 0": (
            (
                "writing = (target >= 0)[:, None, None] & ",
                "target = tl.maximum(target, 0)\n        writing = (target >= 0)[:, None, None] & ",
            ),
        ),
        "an empty sequence clears its slot": ("if first >= end:", "if first > end:"),
        "32-bit slots": ("slot = tl.load(slots + sequence).to(tl.int64)", "slot = tl.load(slots + sequence)"),
    }


def arguments_of(lengths, channels=20, width=4, dilation=1, dtype=torch.float32, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "x": normal(sum(lengths), channels),
        "weight": normal(channels, width),
        "state": normal(len(lengths), channels, (width - 1) * dilation),
        "slots": torch.arange(len(lengths), dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
        "bias": normal(channels) if bias else None,
        "dilation": dilation,
    }


def run(arguments, form, **changes):
    """(out, state after) of a call that leaves `arguments` as they are."""
    arguments = arguments | changes
    state = arguments["state"].clone()
    return causal_conv(**dict(arguments, state=state), form=form), state


@every_form
def test_by_hand(form):
    require_form(form)
    x = torch.tensor([[1.0], [2.0], [3.0]])
    weight = torch.tensor([[1000.0, 100.0, 10.0, 1.0]])
    call = {"x": x, "weight": weight, "state": torch.tensor([[[7.0, 8.0, 9.0]]]), "slots": torch.tensor([0])}
    out, state = run(call, form, activation=None)
    assert out.flatten().tolist() == [7891.0, 8912.0, 9123.0] and state.flatten().tolist() == [1.0, 2.0, 3.0]
    # one token: the state moves on by one
    out, state = run(call | {"x": x[:1]}, form, activation=None, bias=torch.tensor([0.5]))
    assert out.item() == 7891.5 and state.flatten().tolist() == [8.0, 9.0, 1.0]
    out, state = run(call, form, activation=None, has_initial_state=torch.tensor([False]))
    assert out.flatten().tolist() == [1.0, 12.0, 123.0]
    # dilation 2, width 2: the input before the last
    call |= {"weight": torch.tensor([[10.0, 1.0]]), "state": torch.tensor([[[7.0, 8.0]]]), "dilation": 2}
    out, state = run(call, form, activation=None)
    assert out.flatten().tolist() == [71.0, 82.0, 13.0] and state.flatten().tolist() == [2.0, 3.0]


@every_form
@pytest.mark.filterwarnings("ignore:overflow")  # exp(100), whose reciprocal is the 0 that is right
def test_silu(form):
    require_form(form)
    x = torch.tensor([[-100.0], [-1.0], [0.0], [1.0], [100.0]])
    call = {"x": x, "weight": torch.tensor([[0.0, 1.0]]), "state": torch.zeros(1, 1, 1), "slots": torch.tensor([0])}
    wanted = [0.0, -0.26894143, 0.0, 0.73105860, 100.0]
    assert run(call, form)[0].flatten().tolist() == pytest.approx(wanted, abs=1e-6)


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("width", "dilation"), [(4, 1), (2, 1), (3, 3)])
def test_bits_depend_neither_on_the_batch_nor_on_cuts(form, dtype, width, dilation):
    require_form(form)
    lengths = [17, 0, 1, 40, 3]
    arguments = arguments_of(lengths, 33, width, dilation, dtype)
    out, state = run(arguments, form)
    bounds = arguments["cu_seqlens"].tolist()
    for sequence, length in enumerate(lengths):
        start = bounds[sequence]
        for cut in {0, 1, length // 2, length}:
            carried, pieces = arguments["state"], []
            for first, last in ((0, min(cut, length)), (min(cut, length), length)):
                alone = {"x": arguments["x"][start + first : start + last], "slots": arguments["slots"][sequence, None]}
                alone["cu_seqlens"] = torch.tensor([0, last - first])
                answer, carried = run(arguments | alone | {"state": carried}, form)
                pieces.append(answer)
            assert torch.equal(torch.cat(pieces), out[start : start + length])
            assert torch.equal(carried[sequence], state[sequence])


@every_form
@pytest.mark.parametrize("length", [0, 1, 4, 35])
def test_equal_lengths_need_no_bounds(form, length):
    require_form(form)
    arguments = arguments_of([length] * 3)
    wanted = run(arguments, form)
    for found, right in zip(run(arguments, form, cu_seqlens=None), wanted):
        assert torch.equal(found, right)


@every_form
@pytest.mark.parametrize("uniform", [False, True])
def test_rejected_drafts_roll_back(form, uniform):
    require_form(form)
    arguments = arguments_of([4, 4, 4], dilation=2)
    slots = torch.tensor([7, 2, 9])
    write_slots = torch.tensor([[0, 1, 3, 4], [5, 2, 6, 8], [9, 11, 12, 10]])  # 2 and 9: read, and written
    state = torch.full((13, 20, 6), math.nan)
    state[slots] = arguments["state"]
    bounds = {"cu_seqlens": None if uniform else arguments["cu_seqlens"]}
    drafted = causal_conv(**arguments | bounds | {"state": state, "slots": slots}, write_slots=write_slots, form=form)
    assert torch.equal(state[7], arguments["state"][0])
    for accepted in range(1, 5):
        rows = arguments["x"].view(3, 4, 20)[:, :accepted].flatten(0, 1)
        out, kept = run(arguments | {"x": rows, "cu_seqlens": None}, form)
        assert torch.equal(out.view(3, accepted, 20), drafted.view(3, 4, 20)[:, :accepted])
        assert torch.equal(state[write_slots[:, accepted - 1]], kept)


@every_form
def test_states_of_drafts_that_are_not_there(form):
    require_form(form)
    arguments = arguments_of([1, 3, 0])
    state = torch.full((9, 20, 3), math.nan)
    state[:3] = arguments["state"]
    write_slots = torch.tensor([[3, 4], [-1, 5], [6, 7]])
    causal_conv(**arguments | {"state": state}, write_slots=write_slots, form=form)
    assert torch.equal(state[:3], arguments["state"])
    assert state.isnan().flatten(1).all(1).tolist() == [False] * 4 + [True, False, True, True, True]
    assert torch.equal(state[3], torch.cat((arguments["state"][0, :, 1:], arguments["x"][:1].T), dim=1))
    assert torch.equal(state[5], torch.cat((arguments["state"][1, :, 2:], arguments["x"][1:3].T), dim=1))


@every_form
def test_a_slot_of_a_finished_request_does_not_leak(form):
    require_form(form)
    arguments = arguments_of([18, 2, 0])
    zeros = torch.zeros_like(arguments["state"])
    used = torch.full_like(zeros, math.nan)
    out, state = run(arguments, form, state=zeros)
    out_used, state_used = run(arguments, form, state=used, has_initial_state=torch.tensor([False] * 3))
    assert torch.equal(out_used, out) and torch.equal(state_used[:2], state[:2])
    assert state_used[2].isnan().all()  # no tokens: nothing is written
    out_none, state_none = run(arguments, form, state=used, slots=torch.tensor([-1] * 3))
    assert torch.equal(out_none, out) and state_none.isnan().all()


@every_form
def test_nan_stays_in_its_sequence_and_channel(form):
    require_form(form)
    arguments = arguments_of([3, 20, 4])
    clean, _ = run(arguments, form)
    arguments["x"][5, 7] = math.nan
    out, state = run(arguments, form)
    assert out.isnan().nonzero().tolist() == [[5, 7], [6, 7], [7, 7], [8, 7]] and not state.isnan().any()
    assert torch.equal(out[:3], clean[:3]) and torch.equal(out[9:], clean[9:])


@every_form
def test_views_of_a_projection_and_of_a_pool(form):
    require_form(form)
    arguments = arguments_of([5, 30])
    wide = torch.full((35, 50), math.nan)
    wide[:, 7:27] = arguments["x"]
    pool = torch.full((2, 3, 20, 3), math.nan)  # [slots, layers, C, history]
    pool[:, 1] = arguments["state"]
    out, state = run(arguments, form)
    viewed = arguments | {"x": wide[:, 7:27], "state": pool[:, 1]}
    viewed |= {"cu_seqlens": arguments["cu_seqlens"].long(), "slots": arguments["slots"].long()}
    assert torch.equal(causal_conv(**viewed, form=form), out)
    assert torch.equal(pool[:, 1], state) and pool[:, [0, 2]].isnan().all()


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 9),
    st.integers(2, 5),
    st.integers(1, 4),
    st.booleans(),
)
def test_all_forms_are_a_convolution(seed, lengths, channels, width, dilation, bias):
    arguments = arguments_of(lengths, channels, width, dilation, torch.float64, seed, bias)
    wanted = []
    for sequence, rows in enumerate(arguments["x"].split(lengths)):
        if not len(rows):
            continue
        row = torch.cat((arguments["state"][sequence], rows.T), dim=1)[None]
        wanted.append(
            torch.nn.functional.conv1d(
                row, arguments["weight"][:, None], arguments["bias"], dilation=dilation, groups=channels
            )[0].T
        )
    wanted = torch.cat([arguments["x"][:0], *wanted])
    reference, cpu = (run(arguments, form, activation=None) for form in ("reference", "cpu"))
    assert torch.allclose(reference[0], wanted, rtol=1e-12, atol=1e-12)
    assert torch.allclose(cpu[0], wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(reference[1], cpu[1])


@every_form
def test_agrees_with_transformers(form):
    require_form(form)
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    arguments = arguments_of([6])
    parameters = (arguments["weight"], arguments["bias"], "silu")
    prefill = modeling.causal_conv1d_fn(arguments["x"].T[None], *parameters)
    out, state = run(arguments, form, has_initial_state=torch.tensor([False]))
    assert torch.allclose(out, prefill[0].T, rtol=1e-5, atol=1e-6)
    carried = arguments["state"].clone()
    decode = modeling.causal_conv1d_update(arguments["x"][:1].T[None], carried, *parameters)
    out, state = run(arguments | {"x": arguments["x"][:1], "cu_seqlens": None}, form)
    assert torch.allclose(out, decode[0].T, rtol=1e-5, atol=1e-6) and torch.equal(state, carried)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=12), st.sampled_from([16, 32]))
def test_places_hold_the_tiles_of_any_sequences(lengths, tile):
    bounds = [sum(lengths[:sequence]) for sequence in range(len(lengths) + 1)]
    starts = [start // tile + sequence for sequence, start in enumerate(bounds[:-1])]
    starts.append(places(bounds[-1], len(lengths), tile, uniform=False))
    for sequence, length in enumerate(lengths):
        if bounds[-1]:
            assert starts[sequence] + -(-length // tile) <= starts[sequence + 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(1, 7, 20)}, r"x must be \[tokens, channels\]"),
        ({"weight": torch.ones(20, 1)}, r"weight must be \[20, width ≥ 2\]"),
        ({"weight": torch.ones(20, 1, 4)}, "weight must be"),
        ({"weight": torch.ones(20, 4).half()}, "weight is not torch.float32"),
        ({"state": torch.ones(2, 20, 4)}, r"state must be \[slots, 20, 3\]"),
        ({"state": torch.ones(2, 20, 3).half()}, "state is not torch.float32"),
        ({"dilation": 2}, r"state must be \[slots, 20, 6\]"),
        ({"dilation": 0}, "dilation must be at least 1"),
        ({"bias": torch.ones(19)}, r"bias must be \[20\]"),
        ({"activation": "relu"}, "activation 'relu'"),
        ({"slots": torch.tensor([0, 0])}, "slot 0 is written twice"),
        ({"slots": torch.tensor([0.0, 1.0])}, "slots must be int32 or int64"),
        ({"cu_seqlens": torch.tensor([0, 5])}, r"cu_seqlens must be \[3\]"),
        ({"cu_seqlens": torch.tensor([0, 5, 8])}, "must ascend from 0 to 7"),
        ({"cu_seqlens": None}, "7 tokens do not divide among 2 sequences"),
        ({"has_initial_state": torch.ones(2)}, "has_initial_state must be"),
        ({"write_slots": torch.zeros(3, 2, dtype=torch.int32)}, r"write_slots must be \[2, tokens\]"),
        ({"write_slots": torch.tensor([[1], [0]])}, "slot 0 is read for sequence 0 and written for sequence 1"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        causal_conv(**(arguments_of([5, 2]) | change))


def test_slots_that_do_not_exist():
    with pytest.raises(IndexError, match="slot 2 does not exist, there are 2"):
        causal_conv(**(arguments_of([5, 2]) | {"slots": torch.tensor([0, 2])}))
    with pytest.raises(IndexError, match="slot 5 does not exist, there are 2"):
        causal_conv(**arguments_of([5, 2]), write_slots=torch.tensor([[0], [5]]))


def test_triton_form_refuses_what_it_cannot_do():
    pytest.importorskip("triton")
    for change, message in [
        ({"x": torch.ones(7, 40)[:, ::2]}, "last dimension of x is strided"),
        ({"weight": torch.ones(4, 20).T}, "weight must be contiguous"),
        ({"state": torch.ones(2, 3, 20).mT}, "each slot of state must be contiguous"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(arguments_of([5, 2]) | change, "interpret")
    with pytest.raises(ValueError, match="history up to 64"):
        run(arguments_of([5, 2], dilation=22), "interpret")
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        run(arguments_of([5, 2], dtype=torch.float64), "interpret")

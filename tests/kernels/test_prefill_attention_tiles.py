"""How the Triton form of prefill attention cuts its work: tiles, descriptors, bits, resources and cost."""

import os
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from kernel_checks import case_id

from wholecurve.kernels.decode_attention import decode_attention
from wholecurve.kernels.prefill_attention import spec
from wholecurve.kernels.prefill_attention.subject import SUBJECT


def interpret(case, config=None, **changes):
    """Outputs of the interpreted form for a case, with some arguments changed."""
    pytest.importorskip("triton")
    from wholecurve.kernels.launch import run_all

    arguments = SUBJECT.arguments(case) | changes
    launches, outputs = SUBJECT.launches(arguments, config)
    run_all(launches, interpreted=True)
    return SUBJECT.outputs(outputs, arguments)


OPTIONS = [
    {},
    {"window": 70},
    {"soft_cap": 3.0, "return_lse": True},
    {"window": 9, "has_sinks": True, "return_lse": True},
    {"cache_dtype": "float8_e4m3fn", "scales": "head"},
]


@pytest.fixture
def exact_products(monkeypatch):
    """Products of the interpreter in fp64, rounded once: numpy's own fp32 ones depend on where in a tile a row lies."""
    interpreter, numerics = pytest.importorskip("triton.runtime.interpreter"), install_numerics()

    def create_dot(self, a, b, accumulator, *_):
        product = numerics.decode(a).astype("float64") @ numerics.decode(b).astype("float64") + accumulator.data
        return interpreter.TensorHandle(product.astype("float32"), accumulator.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def install_numerics():
    from wholecurve.profiling import numerics

    numerics.install()
    return numerics


@pytest.mark.bit_exact
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", OPTIONS, ids=case_id)
def test_bits_of_the_cpu_form_depend_on_the_position_alone(options, dtype):
    if "cache_dtype" not in options or dtype == "bfloat16":
        check_chunks("cpu", ([0, 1, 63, 64, 65, 130, 200], [0, 100, 101, 200], range(0, 201, 40)), options, dtype)
        check_batch("cpu", options, dtype)


@pytest.mark.bit_exact
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", OPTIONS[:3], ids=case_id)
def test_a_decode_step_on_a_cpu_gives_the_bits_of_prefill(options, dtype):
    arguments = SUBJECT.arguments(spec.case([(200, 200)], 9, 3, 64, 16, dtype=dtype, **options))
    whole = SUBJECT.run(arguments, "cpu")
    shared = {name: value for name, value in arguments.items() if name not in ("cu_q", "max_q")}
    for position in (0, 1, 9, 62, 63, 64, 69, 70, 100, 133, 134, 199):
        step = {"q": arguments["q"][position : position + 1], "context_lens": torch.tensor([position + 1])}
        found = SUBJECT.outputs(decode_attention(**(shared | step), form="cpu"), {})
        for one, other in zip(found, whole, strict=True):
            assert torch.equal(one, other[position : position + 1]), position


@pytest.mark.parametrize("options", OPTIONS[:3], ids=case_id)
def test_bits_of_the_triton_form_depend_on_the_position_alone(options, exact_products):
    """How its tiles and sums are cut does not; what the products themselves do is not of the interpreter to say."""
    check_chunks("interpret", ([0, 1, 64, 101, 200],), options)
    check_batch("interpret", options)


def check_chunks(form, ways, options, dtype="bfloat16"):
    """A prompt of 200 in one piece and cut in several ways gives the same bits."""
    arguments = SUBJECT.arguments(spec.case([(200, 200)], 6, 2, 64, 16, dtype=dtype, **options))
    whole = SUBJECT.run(arguments, form)
    for cuts in ways:
        parts = []
        for start, end in pairwise(cuts):
            chunk = {"q": arguments["q"][start:end], "context_lens": [end], "cu_q": [0, end - start]}
            parts.append(SUBJECT.run(arguments | chunk, form))
        for together, pieces in zip(whole, zip(*parts), strict=True):
            assert torch.equal(torch.cat(pieces), together), list(cuts)


def check_batch(form, options, dtype="bfloat16"):
    """Sequences alone and together give the same bits."""
    chunks = [(5, 5), (0, 30), (33, 150), (1, 97), (50, 51)]
    arguments = SUBJECT.arguments(spec.case(chunks, 6, 2, 64, 16, dtype=dtype, **options))
    together = SUBJECT.run(arguments, form)
    for sequence, (start, end) in enumerate(pairwise(arguments["cu_q"].tolist())):
        alone = {
            "q": arguments["q"][start:end],
            "block_table": arguments["block_table"][sequence : sequence + 1],
            "context_lens": arguments["context_lens"][sequence : sequence + 1],
            "cu_q": [0, end - start],
        }
        for one, other in zip(SUBJECT.run(arguments | alone, form), together, strict=True):
            assert torch.equal(one, other[start:end]), chunks[sequence]


@pytest.mark.parametrize("case", spec.TESTS[2:], ids=case_id)
@pytest.mark.parametrize("config", [{"tma": True}, {"tma": True, "block_n": 32}], ids=case_id)
def test_formula_is_count_with_descriptors(case, config):
    pytest.importorskip("triton")
    from wholecurve.kernels.launch import run_all
    from wholecurve.profiling.counting import count

    launches, _ = SUBJECT.launches(SUBJECT.arguments(case), config)
    with count() as counts:
        run_all(launches, interpreted=True)
    cost = SUBJECT.cost(case, config=config)
    assert (counts.load_bytes, counts.store_bytes, counts.dot_flops) == (
        cost.load_bytes,
        cost.store_bytes,
        cost.flops_issued,
    )


ON_DESCRIPTORS = [
    spec.case([(40, 200), (3, 259)], 4, 2, 64, 64),
    spec.case([(40, 200), (3, 259)], 4, 2, 64, 64, window=70, has_sinks=True, return_lse=True),
    spec.case([(9, 150), (70, 70)], 2, 1, 80, 128, v_head_dim=96, dtype="float16", soft_cap=4.0),
    spec.case([(33, 140)], 2, 1, 64, 64, cache_dtype="float8_e4m3fn", scales="head"),
]


@pytest.mark.parametrize("case", ON_DESCRIPTORS, ids=case_id)
def test_descriptors_give_the_bits_of_pointers(case):
    pytest.importorskip("triton")
    from wholecurve.profiling.checks import check_case

    finding = check_case(SUBJECT, case, "interpret", config={"tma": True, "block_n": 64})
    assert finding, finding
    outputs = [interpret(case, {"tma": tma, "block_n": 64}) for tma in (False, True)]
    for one, other in zip(*outputs, strict=True):
        assert torch.equal(one, other)


def test_descriptors_are_taken_where_a_tile_lies_inside_a_page():
    for block_size, keys in ((128, 128), (64, 64), (192, 64), (256, 128)):
        chosen = spec.tile(128, 128, block_size, tma=True)
        assert (chosen.tma, chosen.block_n) == (True, keys)
    for block_size in (1, 5, 16, 32, 96):
        chosen = spec.tile(128, 128, block_size, tma=True)
        assert (chosen.tma, chosen.block_n) == (False, 64)
    assert not spec.tile(128, 128, 128).tma
    assert not spec.tile(128, 128, 128, "float32", tma=True).tma


def test_launches_take_descriptors_on_devices_that_have_them():
    pytest.importorskip("triton")
    case = spec.case([(2, 40)], 4, 2, 64, 64)
    for device, wanted in (("meta", True), ("cpu", False)):
        (launch,), _ = SUBJECT.launches(SUBJECT.arguments(case, device))
        assert launch.options["TMA"] is wanted
    # a cache that a descriptor cannot describe: its rows start at odd multiples of 2 bytes
    arguments = SUBJECT.arguments(case, "meta")
    arguments["k_cache"] = torch.empty(3, 64, 2, 65, dtype=torch.bfloat16, device="meta")[..., :64]
    (launch,), _ = SUBJECT.launches(arguments)
    assert launch.options["TMA"] is False


@pytest.mark.parametrize("config", [None, {"tma": True}])
def test_interpreted_form_takes_strided_caches(config):
    """Caches cut out of one tensor, as an engine that keeps keys and values side by side has them."""
    case = spec.case([(17, 133), (3, 16)], 4, 2, 64, 64)
    arguments = SUBJECT.arguments(case)
    side_by_side = torch.stack([arguments["k_cache"], arguments["v_cache"]], dim=1)
    split = {"k_cache": side_by_side[:, 0], "v_cache": side_by_side[:, 1]}
    for one, other in zip(interpret(case, config, **split), interpret(case, config), strict=True):
        assert torch.equal(one, other)


def test_a_loose_bound_changes_nothing():
    case = spec.case([(17, 133), (3, 16)], 4, 2, 64, 16)
    wanted = interpret(case, max_q=17)
    for max_q in (None, 18, 500):
        assert torch.equal(interpret(case, max_q=max_q)[0], wanted[0])


@pytest.mark.parametrize("config", [{"block_m": 16}, {"block_m": 64, "block_n": 16}, {"block_n": 128}], ids=case_id)
def test_tiles_do_not_matter(config):
    case = spec.case([(40, 200), (4, 3)], 3, 1, 64, 16, window=100, return_lse=True, dtype="float32")
    wanted = SUBJECT.run(SUBJECT.arguments(case), "reference")
    for one, other in zip(interpret(case, config), wanted, strict=True):
        assert torch.allclose(one, other, atol=2e-6)


def all_cases():
    """Two production cases, through descriptors and through pointers, or all of them."""
    return list(spec.BENCH) if os.environ.get("WHOLECURVE_ALL_CASES") == "1" else ["512x512", "pages-of-16-2048x16384"]


@pytest.mark.parametrize("bench", all_cases())
@pytest.mark.parametrize(("target", "instruction"), [("sm_90", "wgmma"), ("sm_100", "tcgen05")])
def test_production_cases_run_on_tensor_cores_without_spills(bench, target, instruction):
    pytest.importorskip("triton")
    from offsets import offsets_that_may_wrap

    from wholecurve.profiling.compile import compile_launch
    from wholecurve.profiling.resources import MULTIPROCESSORS, resources

    (launch,), _ = SUBJECT.launches(SUBJECT.arguments(spec.BENCH[bench], "meta"))
    compiled = compile_launch(launch, target)
    found = resources(compiled, target)
    assert set(found.matrix) == {instruction} and found.spill_bytes == 0
    assert bool(found.copies.get("tma_load")) == launch.options["TMA"]
    assert found.shared_bytes < MULTIPROCESSORS[target].shared_bytes
    assert offsets_that_may_wrap(compiled.asm["ttir"]) == []


def test_cost_by_hand():
    """Prefix 3, 2 new tokens: the rows see 4 and 5 keys. A sequence without new tokens moves its lengths only."""
    cost = spec.cost([(2, 5), (0, 100)], 4, 2, 64, 4)
    assert cost.flops == 4 * 9 * 4 * 64
    assert cost.bytes_min == 2 * 5 * 2 * 64 * 2 + 2 * 2 * 4 * 64 * 2 + 4 * (2 + 2 + 3)
    assert cost.flops_issued == 2 * 2 * (2 * 128 * 64 * 64)  # for each key-value head one tile of 128 rows, 64 keys
    # per program: two offsets; for the one that works a length and the offsets again; 5 keys with their table entries
    assert cost.load_bytes == 2 * (2 * 2 * 4 + 3 * 4 + 4 * 64 * 2 + 5 * (2 * 64 * 2 + 4))
    assert cost.store_bytes == 2 * 4 * 64 * 2
    assert cost.unit == "bfloat16" and spec.cost([(2, 5)], 4, 2, 64, 4, dtype="float32").unit == "vector"


def test_cost_of_the_options_by_hand():
    plain = spec.cost([(1, 100)], 4, 2, 64, 16)
    window = spec.cost([(1, 100)], 4, 2, 64, 16, window=10)  # keys 90 to 99, on pages 5 and 6
    assert window.flops == 4 * 10 * 4 * 64
    assert plain.bytes_min - window.bytes_min == 90 * 2 * 2 * 64 * 2 + (7 - 2) * 4
    assert spec.cost([(1, 100)], 4, 2, 64, 16, return_lse=True).bytes_min - plain.bytes_min == 4 * 4
    assert spec.cost([(1, 100)], 4, 2, 64, 16, has_sinks=True).bytes_min - plain.bytes_min == 4 * 4
    wide = spec.cost([(1, 100)], 4, 2, 64, 16, v_head_dim=128)
    assert wide.flops == 2 * 100 * 4 * (64 + 128)
    fp8 = spec.cost([(1, 100)], 4, 2, 64, 16, cache_dtype="float8_e4m3fn", scales="head")
    assert plain.bytes_min - fp8.bytes_min == 100 * 2 * 2 * 64 - 2 * 2 * 4


@pytest.mark.parametrize("new", [0, 1, 5, 9])
@pytest.mark.parametrize("context", [0, 1, 5, 9])
@pytest.mark.parametrize("window", [None, 1, 3, 5, 20])
def test_seen_pairs_and_keys_are_those_of_the_mask(new, context, window):
    mask = torch.ones(new, context).tril(context - new)
    if window is not None:
        mask = mask.triu(context - new - window + 1)
    assert spec.seen_pairs(new, context, window) == int(mask.sum())
    columns = mask.any(dim=0).nonzero().flatten()
    assert spec.seen_keys(new, context, window, 2) == (len(columns), len((columns // 2).unique()))


def test_long_prefills_cost_what_the_theory_says():
    """8192 new tokens without a prefix: half of the square, and little waste on the diagonal."""
    cost = SUBJECT.cost(spec.BENCH["8192x8192"])
    assert cost.flops == 4 * (8192 * 8193 // 2) * 32 * 128
    assert 1 < cost.flops_issued / cost.flops < 1.02
    window = SUBJECT.cost(spec.BENCH["gemma-window-8192x8192"])
    assert 1 < window.flops_issued / window.flops < 1.1


CHUNKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 150)), min_size=1, max_size=3)


@settings(max_examples=12)
@given(
    chunks=CHUNKS,
    group=st.integers(1, 5),
    block_size=st.sampled_from([1, 5, 16, 32, 64]),
    window=st.none() | st.integers(1, 160),
    has_sinks=st.booleans(),
    tma=st.booleans(),
    block_n=st.sampled_from([16, 32, 64]),
)
def test_interpreted_form_agrees_with_the_definition_and_its_formula(
    chunks, group, block_size, window, has_sinks, tma, block_n
):
    pytest.importorskip("triton")
    from wholecurve.kernels.launch import run_all
    from wholecurve.profiling.checks import check_case
    from wholecurve.profiling.counting import count

    config = {"tma": tma, "block_n": block_n, "block_m": 32}
    case = spec.case(chunks, group, 1, 16, block_size, window=window, has_sinks=has_sinks, return_lse=True)
    finding = check_case(SUBJECT, case, "interpret", config=config)
    assert finding, finding
    launches, _ = SUBJECT.launches(SUBJECT.arguments(case), config)
    with count() as counts:
        run_all(launches, interpreted=True)
    cost = SUBJECT.cost(case, config=config)
    assert (counts.load_bytes, counts.store_bytes) == (cost.load_bytes, cost.store_bytes)
    assert counts.dot_flops == cost.flops_issued >= cost.flops


@settings(max_examples=25)
@given(chunks=CHUNKS, window=st.none() | st.integers(1, 160), block_size=st.sampled_from([1, 5, 16, 64]))
def test_cpu_form_agrees_with_the_definition(chunks, window, block_size):
    from wholecurve.profiling.checks import check_case

    finding = check_case(SUBJECT, spec.case(chunks, 2, 1, 16, block_size, window=window, dtype="float32"), "cpu")
    assert finding, finding

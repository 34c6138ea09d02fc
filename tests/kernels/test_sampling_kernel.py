"""Sampling: every line of the case file in every form, and the distribution that comes out."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.launch import Launch, run_all
from wholecurve.kernels.sampling import cpu, philox, reference, sampling, token_counts
from wholecurve.kernels.sampling.spec import TESTS, cost
from wholecurve.kernels.sampling.subject import SUBJECT, clear_draw, kept_sets
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "cpu", "interpret")


FOLDER = Path(SUBJECT.spec.__file__).parent


class TestSampling(KernelSuite):
    kernel = "sampling"
    dtypes = None  # the cases name theirs: it decides how many passes a search takes
    mutants = {
        # weighing and drawing
        "temperature of another row": (
            "scale_of(tl.load(temperature + row // GROUP))",
            "scale_of(tl.load(temperature))",
        ),
        "seed of another row": ("tl.load(seeds + row)", "tl.load(seeds)"),
        "step of another row": ("tl.load(steps + row)", "tl.load(steps)"),
        "logprobs after penalties": ("weights_of(raw, raw_top, LOG2_E)", "weights_of(values, raw_top, LOG2_E)"),
        "ties go to the highest id": ('> -float("inf")), ids, NEVER)', '> -float("inf")), NEVER - 1 - ids, NEVER)'),
        "best of the first chunk": ("tl.where(chunk_tops == top, best, NEVER)", "tl.where(lanes == 0, best, NEVER)"),
        "target of the row in a chunk": ("target -= tl.sum(", "target -= 0.0 * tl.sum("),
        "a chunk too early": ("tl.minimum(chunk, tl.maximum(", "tl.minimum(tl.maximum(chunk - 1, 0), tl.maximum("),
        "whole window of the last chunk": (
            "tl.where(ids >= chunk * CHUNK, weights_of(values, top, scale), 0.0)",
            "weights_of(values, top, scale)",
        ),
        "chances of 32 bits": ("uniform(high, low) * tl.sum(wide", "uniform(low, high) * tl.sum(wide"),
        "counts of the prompt penalised as output": ("generated = count >> 1", "generated = count"),
        "positive logits multiplied": ("tl.where(raw > 0, raw / repetition, raw * repetition)", "raw * repetition"),
        "32-bit offsets": ("row = tl.program_id(0).to(tl.int64)\n    lanes", "row = tl.program_id(0)\n    lanes"),
        # filters
        "one token too few": ("& (totals >= target)", "& (totals + 1 >= target)"),
        "every tie kept": ("<= budget)\n", "<= budget + 2147483000)\n"),
        "top-p of all, not of the top-k": ("total = mass_above + weight * budget", "total += 0.0 * budget"),
        "ties counted from the row's start": ("budget -= tl.sum(", "budget -= 0 * tl.sum("),
        "digits found before are lost": (
            "tl.load(former_prefixes + row) + digit",
            "0 * tl.load(former_prefixes + row) + digit",
        ),
        "min-p of logits, not of chances": ("1e-38)) * heat", "1e-38))"),
        "the looser of two filters": ("return tl.maximum(threshold", "return tl.minimum(threshold"),
        "no filter where the chunk is drawn": (
            "    if HAS_FILTER:\n        weights = tl.where(",
            "    if False:\n        weights = tl.where(",
        ),
        "no filter where the token is drawn": (
            "            weights = tl.where(kept(",
            "            weights = tl.where(True | kept(",
        ),
        "negative thresholds in reverse": ("ordered ^ 0x7FFFFFFF)", "ordered)"),
    }

    # rows enough that the draws of some depend on what is broken
    mutant_cases = (
        {"num_rows": 6, "vocab": 7000, "temperature": (50.0, 0.0, 20.0), "tied": True},
        {"num_rows": 1, "vocab": 6000, "temperature": (0.8,), "top_k": (5000,), "scale": 0.0},
        {"num_rows": 6, "vocab": 60, "temperature": (5.0,), "min_p": (0.5,)},
        {"num_rows": 6, "vocab": 40, "temperature": (8.0,), "top_k": (2, 30, 20)},
        {
            **{"num_rows": 8, "vocab": 90, "temperature": (1.0, 2.0), "logprobs": True, "scale": 0.5},
            "penalties": ((1.5, 0.5, 0.25),),
        },
        {"num_rows": 6, "vocab": 60, "temperature": (5.0,), "top_k": (20,), "top_p": (0.5,)},
    )

    def mutated(self, changes, folder):
        """`launches` of a copy of the folder with this change; the kernels are in several files."""
        package = f"mutant_sampling_{folder.name}"
        places = 0
        (folder / package).mkdir()
        for path in FOLDER.glob("*.py"):
            source = path.read_text(encoding="utf-8")
            places += source.count(changes[0])
            source = source.replace(*changes).replace("wholecurve.kernels.sampling", package)
            (folder / package / path.name).write_text(source, encoding="utf-8")
        assert places == 1, f"{changes[0]!r} is {places} times in {FOLDER.name}/"
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module(f"{package}.kernel").launches
        finally:
            sys.path.remove(str(folder))


def rows(values, dtype=torch.float32):
    """The same row, or rows, of logits as a tensor [B, V]."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if tensor.dim() == 2 else tensor[None]


def sample(logits, form, temperature=1.0, seeds=None, steps=None, **options):
    """`sampling` with numbers for parameters that all rows share."""
    count = len(logits)

    def per_row(value, dtype):
        return value if torch.is_tensor(value) else torch.full((count,), value, dtype=dtype)

    for name, dtype in (("top_k", torch.int32), ("top_p", torch.float32), ("min_p", torch.float32)):
        if options.get(name) is not None:
            options[name] = per_row(options[name], dtype)
    seeds = torch.arange(count) if seeds is None else per_row(seeds, torch.int64)
    steps = torch.zeros(count, dtype=torch.int64) if steps is None else per_row(steps, torch.int64)
    require_form(form)
    return sampling(logits, per_row(temperature, torch.float32), seeds, steps, form=form, **options)


def kept_tokens(logits, form, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The ids that a form keeps of a row [V]."""
    require_form(form)
    if form == "reference":
        given = (0 if top_k is None else top_k, 1.0 if top_p is None else top_p, 0.0 if min_p is None else min_p)
        limits = [float(torch.tensor(limit, dtype=torch.float32)) if limit != given[0] else limit for limit in given]
        return reference.chances(logits.double(), temperature, *limits).nonzero()[:, 0].tolist()
    heat = torch.tensor([temperature])
    kinds = ((top_k, torch.int32), (top_p, torch.float32), (min_p, torch.float32))
    limits = [None if limit is None else torch.tensor([limit], dtype=kind) for limit, kind in kinds]
    values = logits[None].float()
    if form == "cpu":
        weights = cpu.softmax_weights(values, values.amax(dim=-1), heat)
        cpu.keep_the_best(weights, values, values.amax(dim=-1), heat, *limits)
        return weights[0].nonzero()[:, 0].tolist()
    from wholecurve.kernels.sampling.search import filter_launches
    from wholecurve.kernels.sampling.weigh import Rows

    given = Rows(logits[None], heat)
    launches, (threshold, last) = filter_launches(given, *limits, given.plan(None))
    run_all(launches, interpreted=True)
    at_threshold = (values[0] == threshold) & (torch.arange(len(logits)) <= last)
    return ((values[0] > threshold) | at_threshold).nonzero()[:, 0].tolist()


def test_philox_gives_the_published_words():
    """The known answers of Random123, https://github.com/DEShawResearch/random123, tests/kat_vectors."""
    for seed, counter, stream, wanted in [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ]:
        words = philox.philox(torch.tensor(seed), torch.tensor(counter), stream)
        assert " ".join(f"{int(word):08x}" for word in words) == wanted
    # counters and keys with all their words set
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert scalar_philox(counter, key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert scalar_philox((2**32 - 1,) * 4, (2**32 - 1,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def scalar_philox(counter, key):
    """Philox-4x32-10 as the paper writes it, in whole numbers."""
    for _ in range(10):
        high = [(factor * word) >> 32 for factor, word in zip(philox.MULTIPLIERS, counter[::2])]
        low = [(factor * word) % 2**32 for factor, word in zip(philox.MULTIPLIERS, counter[::2])]
        counter = (high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0])
        key = tuple((word + step) % 2**32 for word, step in zip(key, philox.KEY_STEPS))
    return counter


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_philox_is_the_scalar_one(seed, counter, stream):
    words = philox.philox(torch.tensor([seed]), torch.tensor([counter]), stream)
    low, high = counter % 2**32, (counter >> 32) % 2**32
    assert tuple(map(int, words)) == scalar_philox((low, high, stream, 0), (seed % 2**32, (seed >> 32) % 2**32))
    on_torch = philox.philox_words(torch.tensor([seed]), torch.tensor([counter]), stream)
    assert tuple(map(int, on_torch)) == tuple(map(int, words))


def test_philox_is_tritons():
    triton = pytest.importorskip("triton")
    from triton_philox import words_kernel

    seeds = torch.randint(-(2**63), 2**63 - 1, (8,))
    steps = torch.randint(0, 2**45, (8,))
    found = torch.empty(8, 8, dtype=torch.int64)
    Launch(words_kernel, (8,), (seeds, steps, found), {}).run(interpreted=True)
    wanted = philox.philox(seeds, steps) + philox.philox(seeds, steps, philox.VERIFICATION_STREAM)
    assert triton and torch.equal(found, torch.stack(wanted, dim=1))


def test_draws_are_uniform_and_streams_are_apart():
    seeds = torch.arange(20000)
    draws = philox.sampling_uniform(seeds, torch.tensor(7))
    accept, again = philox.verification_uniforms(seeds, torch.tensor(7))
    for numbers in (draws, accept, again):
        assert numbers.min() >= 0 and numbers.max() < 1
        counts = torch.histc(numbers.float(), 20, 0, 1)
        assert ((counts - 1000).square() / 1000).sum() < 52  # χ² of 19 degrees, one in 10⁴
    for one, other in ((draws, accept), (draws, again), (accept, again)):
        assert abs(float(torch.corrcoef(torch.stack((one, other)))[0, 1])) < 0.03


@pytest.mark.parametrize("form", FORMS)
def test_temperature_0_takes_the_lowest_of_equal_ones(form):
    logits = rows([[0.5, 3.0, 1.0, 3.0], [3.0, 3.0, 3.0, 3.0], [-1.0, -2.0, -3.0, -1.0]])
    for temperature in (0.0, 1e-45, 1e-39):  # a GPU may flush the smaller ones to 0
        assert sample(logits, form, temperature).tolist() == [1, 0, 0]
    large = torch.full((1, 9000), -1.0)
    large[0, [5000, 8999]] = 2.0
    assert sample(large, form, 0.0).tolist() == [5000]


@pytest.mark.parametrize("form", FORMS)
def test_small_and_large_temperatures_overflow_nowhere(form):
    logits = rows([[-50000.0, 60000.0, 59999.0, 1.0]] * 2)
    assert sample(logits, form, 1e-6).tolist() == [1, 1]
    assert sample(logits, form, 1e-37, top_p=0.9).tolist() == [1, 1]
    seeds = torch.tensor([0, 3])
    tokens = sample(logits, form, 1e38, seeds=seeds)  # all alike
    assert tokens.tolist() == (philox.sampling_uniform(seeds, torch.zeros(2, dtype=torch.int64)) * 4).long().tolist()


@pytest.mark.parametrize("form", FORMS)
def test_top_k(form):
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0]).bfloat16()  # half the passes of fp32
    for off in (0, -1, 5, 6, 10**9):
        assert kept_tokens(logits, form, top_k=off) == [0, 1, 2, 3, 4]
    assert kept_tokens(logits, form, top_k=1) == [1]
    assert kept_tokens(logits, form, top_k=2) == [1, 2]  # of equal ones the lowest ids
    assert kept_tokens(logits, form, top_k=4) == [0, 1, 2, 3]
    assert kept_tokens(-logits, form, top_k=4) == [0, 1, 2, 4]
    assert kept_tokens(logits * 0.0, form, top_k=3) == [0, 1, 2]
    signed = torch.tensor([-0.0, 0.0, -0.0, -1.0]).bfloat16()  # zeros are equal
    assert kept_tokens(signed, form, top_k=2) == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_top_p(form):
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert kept_tokens(logits, form, top_p=1.0) == [0, 1, 2]
    assert kept_tokens(logits, form, top_p=0.0) == [0]
    # at the boundary itself fp32 chances decide: just before it and just after
    assert kept_tokens(logits, form, top_p=0.49999) == [0] and kept_tokens(logits, form, top_p=0.50001) == [0, 1]
    assert kept_tokens(logits, form, top_p=0.79999) == [0, 1] and kept_tokens(logits, form, top_p=0.80001) == [0, 1, 2]
    assert kept_tokens(logits.flip(0), form, top_p=0.7) == [1, 2]
    equal = torch.ones(4).bfloat16()  # exact sums
    wanted = {0.0: [0], 0.25: [0], 0.26: [0, 1], 0.5: [0, 1], 0.75: [0, 1, 2], 0.76: [0, 1, 2, 3]}
    assert {share: kept_tokens(equal, form, top_p=share) for share in wanted} == wanted


@pytest.mark.parametrize("form", FORMS)
def test_top_p_is_taken_of_what_top_k_keeps(form):
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()
    assert kept_tokens(logits, form, top_k=2, top_p=0.5) == [1]  # 0.4 / 0.7 before the second
    assert kept_tokens(logits, form, top_k=3, top_p=1.0) == [0, 1, 3]
    assert kept_tokens(torch.zeros(6).bfloat16(), form, top_k=4, top_p=0.5) == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_min_p(form):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert kept_tokens(logits, form, min_p=0.0) == [0, 1, 2, 3]
    assert kept_tokens(logits, form, min_p=0.29) == [0, 1, 2] and kept_tokens(logits, form, min_p=0.31) == [0, 1]
    assert kept_tokens(logits, form, temperature=2.0, min_p=0.31) == [0, 1, 2, 3]  # √0.1 = 0.316
    assert kept_tokens(torch.tensor([1.0, 3.0, 3.0, 2.999]), form, min_p=1.0) == [1, 2]
    assert kept_tokens(logits, form, top_k=3, top_p=0.9, min_p=0.59) == [0, 1]


@given(
    st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 1.0, 1.0, 2.0]), min_size=1, max_size=12),
    st.integers(-1, 13),
    st.sampled_from([0.0, 0.123, 0.31, 0.57, 0.77, 0.93, 1.0]),
    st.sampled_from([0.0, 0.011, 0.13, 0.47, 1.0]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_cpu_form_keeps_what_the_definition_keeps(values, top_k, top_p, min_p, temperature):
    logits = torch.tensor(values)
    limits = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    surely, perhaps, _ = kept_sets(logits.double(), 0.0, temperature, top_k, top_p, min_p)
    kept = torch.zeros(len(values), dtype=torch.bool)
    kept[kept_tokens(logits, "cpu", **limits)] = True
    assert (surely <= kept).all() and (kept <= perhaps).all()
    assert kept.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_cannot_be_chosen(form, temperature):
    inf, nan = math.inf, math.nan
    logits = rows([[-inf, 1.0, -inf, -inf], [nan, -5.0, nan, nan], [5.0, inf, 9.0, -inf], [-inf, nan, -inf, -inf]])
    tokens, logprobs = sample(logits, form, temperature, return_logprobs=True)
    assert tokens.tolist() == [1, 1, 1, -1]
    assert logprobs.tolist() == [0.0, 0.0, 0.0, -inf]
    for limits in (dict(min_p=0.5), dict(top_k=3, top_p=0.5, min_p=0.1)):
        assert sample(logits, form, temperature, **limits).tolist() == [1, 1, 1, -1]
    both = rows([[inf, 1.0, inf, -inf]] * 8)
    assert set(sample(both, form, temperature).tolist()) == ({0} if temperature == 0 else {0, 2})


@pytest.mark.parametrize("form", FORMS)
def test_a_row_depends_on_nothing_around_it(form):
    case = dict(num_rows=6, vocab=600, temperature=(0.9, 0.0, 2.0), top_k=(50, 0, 9), top_p=(0.9, 1.0), logprobs=True)
    given_all = SUBJECT.arguments(case)
    tokens, logprobs = SUBJECT.run(given_all, form)
    order = torch.tensor([4, 2]) if form == "interpret" else torch.tensor([4, 2, 0, 5])
    moved = {name: value[order] if torch.is_tensor(value) else value for name, value in given_all.items()}
    moved_tokens, moved_logprobs = SUBJECT.run(moved, form)
    assert torch.equal(moved_tokens, tokens[order]) and torch.equal(moved_logprobs, logprobs[order])
    alone = {name: value[:1] if torch.is_tensor(value) else value for name, value in given_all.items()}
    assert torch.equal(SUBJECT.run(alone, form)[0], tokens[:1])


def test_seed_and_step_both_count():
    logits = torch.zeros(64, 1000)
    first = sample(logits, "cpu")
    assert len(set(first.tolist())) > 55
    assert (sample(logits, "cpu", steps=1) != first).sum() > 55
    assert torch.equal(sample(logits, "cpu", steps=1), sample(logits, "cpu", steps=1))
    assert len(set(sample(logits, "cpu", seeds=5).tolist())) == 1
    high = sample(logits, "cpu", seeds=torch.arange(64) << 32)  # the upper half of a seed too
    assert len(set(high.tolist())) > 55


@pytest.mark.parametrize(
    "limits", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}], ids=str
)
def test_tokens_come_with_their_chances(limits):
    number, logits = 20000, torch.tensor([0.3, -1.0, 2.0, 1.5, 0.0, 1.5, -2.0, 0.7])
    temperature = 1.3
    tokens = sample(logits.expand(number, -1), "cpu", temperature, **limits)
    chances = reference.chances(
        logits.double(), temperature, limits.get("top_k", 0), limits.get("top_p", 1.0), limits.get("min_p", 0.0)
    )
    wanted = chances / chances.sum() * number
    counts = torch.bincount(tokens, minlength=8)
    assert (counts[wanted == 0] == 0).all()
    chi_squared = ((counts - wanted).square() / wanted)[wanted > 0].sum()
    assert chi_squared < 30  # of at most 7 degrees, less than one in 10⁴


@pytest.mark.parametrize("form", FORMS)
def test_penalties(form):
    logits = rows([[2.0, 1.9, -1.0, 1.8]] * 5)
    counts = token_counts([[0], [0], [], [0, 1], []], [[], [1], [0, 0, 1], [], [0]], 4)
    assert counts.tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [4, 2, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0]]
    penalties = torch.tensor([[1.5, 0, 0], [1.5, 0, 0], [1, 0, 0.15], [1, 5, 5], [1, 0.15, 0]])
    # row by row: 2 / 1.5; both divided; 2 − 2 · 0.15 and 1.9 − 0.15; a prompt is no output; 2 − 0.15
    tokens = sample(logits, form, 0.0, counts=counts, penalties=penalties)
    assert tokens.tolist() == [1, 3, 3, 0, 1]
    negative = rows([[-1.0, -1.2, -9.0, -9.0]])
    twice = torch.tensor([[2.0, 0.0, 0.0]])
    assert sample(negative, form, 0.0, counts=token_counts([[0]], [[]], 4), penalties=twice).tolist() == [1]
    neutral = torch.tensor([[1.0, 0.0, 0.0]]).expand(5, 3).contiguous()
    assert sample(logits, form, 0.0, counts=counts, penalties=neutral).tolist() == [0] * 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_counts_of_any_integer_dtype(form, dtype):
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    counts = token_counts([[3, 4]] * 2, [[5, 5, 6], [3]], 40, dtype=dtype)
    assert counts.dtype == dtype
    given_all = dict(temperature=0.7, counts=counts, penalties=torch.tensor([[1.3, 0.2, 0.4]] * 2))
    assert torch.equal(sample(logits, form, **given_all), sample(logits, "reference", **given_all))


@pytest.mark.parametrize("form", FORMS)
def test_logprobs_are_those_of_the_logits_as_given(form):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens, logprobs = sample(logits, form, 2.0, top_k=5, return_logprobs=True)
    wanted = logits.double().log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]
    assert logprobs.dtype == torch.float32
    assert (logprobs - wanted).abs().max() < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_layouts(form):
    logits = torch.randn(3, 203, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = sample(logits[:, 1:201].contiguous(), form)
    assert torch.equal(sample(logits[:, 1:201], form), wanted)  # 2-byte aligned, with gaps
    with pytest.raises(ValueError, match="last dimension of logits is strided"):
        sample(logits[:, ::2], form)
    with pytest.raises(ValueError, match="strided"):
        sample(logits.T[:3], form)


def test_double_precision():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = sample(logits, "reference", top_p=0.9, return_logprobs=True)
    for one, other in zip(sample(logits, "cpu", top_p=0.9, return_logprobs=True), wanted):
        assert one.dtype == other.dtype and torch.allclose(one, other)
    with pytest.raises(ValueError, match="the Triton form takes"):
        sample(logits, "interpret")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3, 4)}, r"must be \[B, V\]"),
        ({"logits": torch.zeros(2, 0)}, "V ≥ 1"),
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, "floating-point"),
        ({"temperature": torch.ones(3)}, "temperature must be"),
        ({"temperature": torch.ones(2, dtype=torch.float64)}, "temperature must be"),
        ({"temperature": torch.tensor([1.0, -0.1])}, "finite and 0 or more"),
        ({"temperature": torch.tensor([1.0, math.inf])}, "finite and 0 or more"),
        ({"temperature": torch.tensor([1.0, math.nan])}, "finite and 0 or more"),
        ({"seeds": torch.zeros(2, dtype=torch.int32)}, "seeds must be"),
        ({"steps": torch.zeros(1, dtype=torch.int64)}, "steps must be"),
        ({"top_k": torch.ones(2)}, "top_k must be"),
        ({"top_p": torch.tensor([0.5, 1.1])}, "in 0 … 1"),
        ({"min_p": torch.tensor([-0.1, 0.0])}, "in 0 … 1"),
        ({"counts": torch.zeros(2, 5, dtype=torch.int16)}, "need each other"),
        ({"penalties": torch.ones(2, 3)}, "need each other"),
        ({"counts": torch.zeros(2, 4, dtype=torch.int16), "penalties": torch.ones(2, 3)}, "counts must be"),
        ({"counts": torch.zeros(2, 5), "penalties": torch.ones(2, 3)}, "counts must be"),
        ({"counts": torch.zeros(2, 5, dtype=torch.int16), "penalties": torch.ones(2, 2)}, "penalties must be"),
        ({"counts": torch.zeros(2, 5, dtype=torch.int16), "penalties": torch.zeros(2, 3)}, "above 0"),
        ({"form": "cuda"}, "does not exist"),
    ],
)
def test_refusals(change, message):
    given_all = dict(
        logits=torch.zeros(2, 5),
        temperature=torch.ones(2),
        seeds=torch.zeros(2, dtype=torch.int64),
        steps=torch.zeros(2, dtype=torch.int64),
    )
    with pytest.raises(ValueError, match=message):
        sampling(**(given_all | change))


@pytest.mark.parametrize("case", TESTS, ids=lambda case: str(case["vocab"]))
def test_every_row_of_the_cases_is_certain(case):
    """The gate leaves out rows where rounding decides; in these none is left out."""
    for wanted in SUBJECT.expected(**SUBJECT.arguments(case)):
        assert wanted.where.all()


def test_few_rows_are_uncertain_in_production():
    case = {"num_rows": 40, "vocab": 131072, "temperature": (0.7, 1.0), "top_p": (0.9,)}
    given_all = SUBJECT.arguments(case)
    (wanted,) = SUBJECT.expected(**given_all)
    assert (~wanted.where).sum() <= 2
    differing = SUBJECT.run(given_all, "cpu")[0] != wanted.value
    assert not (differing & wanted.where).any()


def test_uncertain_draws_are_seen():
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    assert clear_draw(weights, 0.25 + 1e-9, 1e-6) == (1, False)
    assert clear_draw(weights, 0.75 - 1e-9, 1e-6) == (1, False)
    assert clear_draw(weights, 0.5, 1e-6) == (1, True)
    assert clear_draw(weights, 0.0, 1e-6) == (0, True) and clear_draw(weights, 1 - 1e-9, 1e-6) == (2, True)
    values = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    surely, perhaps, _ = kept_sets(values, 0.0, 1.0, 0, 0.5, 0.0)
    assert surely.tolist() == [True, False, False] and perhaps.tolist() == [True, True, False]


@pytest.mark.parametrize("case", TESTS, ids=lambda case: str(case["vocab"]))
def test_the_baseline_agrees(case):
    finding = check_case(SUBJECT, case, "eager", variant=SUBJECT.baselines["eager"])
    assert finding, finding


@pytest.mark.parametrize("target", ["sm_90"])
def test_compiles_for_a_vocabulary_of_one_token(target):
    """Running sums and maxima over one lane."""
    pytest.importorskip("triton")
    from wholecurve.profiling.compile import compile_launch

    case = {"num_rows": 1, "vocab": 1, "temperature": (0.7,), "top_p": (0.9,), "min_p": (0.1,)}
    for launch in SUBJECT.launches(SUBJECT.arguments(case, "meta"))[0]:
        assert compile_launch(launch, target).asm["cubin"]


def test_what_a_draw_reads():
    """Once without a filter, and once more for each digit of a threshold with one."""
    shape = {"num_rows": 4, "vocab": 131072}
    once = 4 * 131072 * 2
    passes = {
        1: {"temperature": (0.0,)},
        2: {"temperature": (0.7,), "min_p": (0.1,)},
        6: {"temperature": (0.7,), "top_p": (0.9,)},
        5: {"temperature": (0.7,), "top_k": (50,)},
        10: {"temperature": (0.7,), "top_k": (50,), "top_p": (0.9,)},
    }
    for number, options in passes.items():
        read = cost(**shape, **options)
        assert read.bytes_min == pytest.approx(once, rel=1e-3)
        assert number * once <= read.load_bytes < 1.2 * number * once
    greedy_rows = cost(**shape, temperature=(0.7, 0.0), top_p=(0.9,))
    assert greedy_rows.load_bytes < 4.8 * once  # a greedy row is not searched

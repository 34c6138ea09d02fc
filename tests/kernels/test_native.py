"""The native form: how it is built, kept and left out, its bits, and whether broken C is caught."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import DTYPES

from wholecurve import kernels
from wholecurve.kernels import native
from wholecurve.kernels.gated_activation import gated_activation, swiglu
from wholecurve.kernels.gated_activation import native as gated_activation_module
from wholecurve.kernels.native import build
from wholecurve.kernels.native.library import open_library, threads_for
from wholecurve.kernels.qk_norm_rope import native as qk_norm_rope_module
from wholecurve.kernels.qk_norm_rope import qk_norm_rope
from wholecurve.kernels.rms_norm import native as rms_norm_module
from wholecurve.kernels.rms_norm import rms_norm
from wholecurve.kernels.rope import native as rope_module
from wholecurve.kernels.rope import rope, rope_tables
from wholecurve.profiling.checks import check_case

MODULES = (rms_norm_module, rope_module, qk_norm_rope_module, gated_activation_module)
NAMES = ("rms_norm", "rope", "qk_norm_rope", "gated_activation")
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler here")
needs_library = pytest.mark.skipif(native.load() is None, reason="the native form could not be compiled here")
PROGRAM = """
import torch
from wholecurve.kernels.rms_norm import form_for, rms_norm
print(form_for("cpu"), rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0).tolist())
"""


def run(cache, **environment):
    """(form, result) that a process of its own gives for PROGRAM, which writes nothing to stderr."""
    given = {name: value for name, value in os.environ.items() if name not in ("CC", "WHOLECURVE_NATIVE")}
    given |= {"WHOLECURVE_CACHE": str(cache), "OMP_NUM_THREADS": "1"} | environment
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=given, check=True)
    assert answer.stderr == ""
    form, result = answer.stdout.split(" ", 1)
    return form, [float(number) for number in result.strip(" []\n").split(",")]


@needs_compiler
def test_is_compiled_once_for_a_cache_folder(tmp_path):
    log, compiler = tmp_path / "log", tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {build.find_compiler()[0]} "$@"\n')
    compiler.chmod(0o755)
    for compiled in (1, 1):
        form, result = run(tmp_path / "cache", CC=str(compiler))
        assert form == "native" and result == pytest.approx([0.848528, 1.131371], abs=1e-6)
        assert log.read_text().count("elementwise.c") == compiled
        assert [path.suffix for path in (tmp_path / "cache" / "native").iterdir()] == [".so"]


@pytest.mark.parametrize(
    "environment",
    [{"WHOLECURVE_NATIVE": "0"}, {"CC": "/bin/false"}, {"CC": "/no/such/compiler"}, {"PATH": ""}],
    ids=str,
)
def test_without_it_the_cpu_form_runs(tmp_path, environment):
    form, result = run(tmp_path, **environment)
    assert form == "cpu" and result == pytest.approx([0.848528, 1.131371], abs=1e-6)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    form, _ = run(tmp_path / "file")
    assert form == "cpu"


def test_importing_kernels_compiles_nothing(tmp_path):
    program = "from wholecurve import kernels\nfor name in kernels.KERNELS: kernels.load_subject(name)"
    environment = os.environ | {"WHOLECURVE_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def quick_compile(monkeypatch):
    """What a library computes does not depend on how far it is optimised."""
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS))


@needs_compiler
def test_a_library_that_is_not_whole_is_compiled_again(tmp_path, quick_compile):
    path = build.built(folder=tmp_path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:-1] + bytes([content[-1] ^ 1])):
        path.write_bytes(damaged)
        assert build.kept(tmp_path, path.name.split("-")[0]) is None
        assert build.built(folder=tmp_path) == path and path.read_bytes() == content


@needs_compiler
def test_the_name_tells_source_compiler_and_processor_apart(tmp_path, monkeypatch):
    compiler = build.find_compiler()
    key = build.build_key(compiler, build.SOURCE)
    other = tmp_path / "other.c"
    other.write_text(build.SOURCE.read_text() + "\n")
    assert build.build_key(compiler, other) != key == build.build_key(compiler, build.SOURCE)
    with monkeypatch.context() as changed:
        changed.setattr(build, "processor", lambda: "another")
        assert build.build_key(compiler, build.SOURCE) != key
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert build.build_key(compiler, build.SOURCE) != key


def test_what_is_no_library_is_not_opened(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no library")
    assert open_library(path) is None and open_library(tmp_path / "missing.so") is None


def test_a_named_form_that_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    with pytest.raises(ValueError, match="'native' does not exist here: it needs a C compiler"):
        rms_norm(torch.ones(1, 4), torch.ones(4), 1e-6, form="native")


@needs_library
@pytest.mark.parametrize("name", NAMES)
def test_is_the_form_of_a_cpu(name, monkeypatch):
    """The default gives the bits of the named form, and calls C."""
    subject = kernels.load_subject(name)
    case = subject.spec.TESTS[4]
    for default, named in zip(subject.run(subject.arguments(case)), subject.run(subject.arguments(case), "native")):
        assert torch.equal(default, named)
    for module in MODULES:
        for function in ("rms_norm_cpu", "rope_cpu", "qk_norm_rope_cpu", "gated_activation_cpu"):
            monkeypatch.setattr(module, function, None, raising=False)
    subject.run(subject.arguments(case))


@needs_library
@pytest.mark.parametrize("name", NAMES)
def test_what_c_does_not_take_goes_to_the_cpu_form(name):
    subject = kernels.load_subject(name)
    arguments = subject.arguments(subject.spec.TESTS[4] | {"dtype": "float64"})
    for output, wanted in zip(subject.run(arguments, "native"), subject.run(arguments, "cpu")):
        assert output.dtype == torch.float64 and torch.equal(output, wanted)


@needs_library
def test_gradients_are_kept():
    x = torch.randn(3, 8, requires_grad=True)
    assert rms_norm(x, torch.ones(8), 1e-6).requires_grad and swiglu(x).requires_grad
    weight = torch.ones(8, requires_grad=True)
    assert rms_norm(x.detach(), weight, 1e-6).requires_grad
    assert rms_norm(x.detach(), weight.detach(), 1e-6, x)[0].requires_grad


@needs_library
@given(
    st.integers(0, 40),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_rope_has_the_bits_of_the_definition(
    num_tokens, heads, pairs, before, after, layout, inverse, dtype, table_dtype, index_dtype
):
    x = torch.randn(num_tokens, heads + 1, before + 2 * pairs + after).to(dtype)[:, 1:]
    before_call, positions = x.clone(), torch.randint(0, 90, (2 * num_tokens,), dtype=index_dtype)[::2]
    tables = rope_tables(2 * pairs, 1e4, 90, table_dtype, CPU)
    options = {"layout": layout, "inverse": inverse, "offset": before}
    out = rope(x, positions, *tables, form="native", **options)
    assert torch.equal(out, rope(x, positions, *tables, form="reference", **options))
    assert out.dtype == dtype and out.is_contiguous() and torch.equal(x, before_call)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"style": "gemma", "layout": "interleaved"}], ids=str)
def test_qk_norm_rope_has_the_bits_of_its_two_steps(dtype, options):
    torch.manual_seed(0)
    subject = kernels.load_subject("qk_norm_rope")
    arguments = subject.arguments({"num_tokens": 5, "num_heads": 4, "num_kv_heads": 2, "head_dim": 80} | options)
    arguments = {name: value.to(dtype) if name in ("q", "k") else value for name, value in arguments.items()}
    for name, other in (("q_weight", dtype), ("k_weight", torch.float32)):
        arguments[name] = arguments[name].to(other)
    outputs = qk_norm_rope(**arguments, form="native")
    for x, weight, out in zip(
        (arguments["q"], arguments["k"]), (arguments["q_weight"], arguments["k_weight"]), outputs
    ):
        normed = rms_norm(x.reshape(-1, 80), weight, arguments["eps"], style=arguments["style"]).view(x.shape)
        tables = arguments["positions"], arguments["cos"], arguments["sin"]
        assert torch.equal(out, rope(normed, *tables, layout=arguments["layout"]))


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_depends_neither_on_its_batch_nor_on_threads(dtype, threads):
    torch.manual_seed(0)
    tokens, hidden, rows = 131, 1200, [0, 66, 130]
    torch.set_num_threads(threads)
    assert threads_for(tokens * hidden) == threads
    x, weight = torch.randn(tokens, hidden).to(dtype), torch.randn(hidden).to(dtype)
    positions, tables = torch.randint(0, 90, (tokens,)), rope_tables(120, 1e4, 90, torch.float32, CPU)
    heads, head_weight = x.view(tokens, 10, 120), weight[:120].clone()

    def outputs(rows):
        yield from rms_norm(x[rows], weight, 1e-6, x.roll(1, 0)[rows], form="native")
        yield from (gated_activation(x[rows], kind, "native") for kind in ("silu", "gelu_tanh"))
        yield rope(heads[rows], positions[rows], *tables, form="native")
        q, k = heads[rows, :7], heads[rows, 7:]
        yield from qk_norm_rope(q, k, head_weight, None, 1e-6, positions[rows], *tables, form="native")

    for together, alone in zip(outputs(slice(None)), outputs(rows), strict=True):
        assert torch.equal(together[rows], alone)


@needs_library
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_silu_of_every_16_bit_number(dtype):
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    out = swiglu(torch.stack([gate, torch.ones_like(gate)], dim=1), form="native").flatten()
    exact = gate.double() / (1 + torch.exp(-gate.double()))  # NaN for −inf, as torch
    assert torch.equal(out.isnan(), gate.isnan() | (gate == -torch.inf)) and torch.equal(out.isinf(), gate == torch.inf)
    limits = torch.finfo(dtype)
    right = (exact.abs() > limits.smallest_normal) & (gate > -88.7)  # fp32 has no exponential beyond, nor has torch
    assert (out != exact.to(dtype))[right].float().mean() < 1e-4
    steps = limits.smallest_normal * limits.eps
    assert torch.allclose(out.double(), exact, rtol=limits.eps, atol=max(steps, 3e-37), equal_nan=True)


@needs_library
def test_sums_of_every_bfloat16_number_are_those_of_torch():
    torch.manual_seed(0)
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).view(256, 256)
    residual = x.flatten()[torch.randperm(2**16)].view(256, 256)
    _, summed = rms_norm(x, None, 1e-6, residual, form="native")
    assert torch.equal(summed.isnan(), (x + residual).isnan())
    assert torch.equal(summed.nan_to_num(nan=0.0), (x + residual).nan_to_num(nan=0.0))


# what is broken: (kernel, text in the C source, replacement)
MUTANTS = {
    "bits cut off": ("rms_norm", "bits += 0x7fff + ((bits >> 16) & 1);", ""),
    "ties away from zero": ("rms_norm", "0x7fff + ((bits >> 16) & 1)", "0x8000"),
    "carry out of a NaN": ("rms_norm", "exact || value == value", "1"),
    "variance of the unrounded sum": (
        "rms_norm",
        "value = rounded(value + get(residual, index, dtype), dtype, 1);",
        "value = value + get(residual, index, dtype);",
    ),
    "last columns not summed": ("rms_norm", "sums[index - whole] += value * value;", ""),
    "no eps": ("rms_norm", "(float)width + eps", "(float)width"),
    "gemma without its one": ("rms_norm", "(1.0f + weighed)", "weighed"),
    "norm not rounded": ("rms_norm", "rounded(value, dtype, 1) * weighed", "value * weighed"),
    "rows taken for packed": ("rms_norm", "row * c->x_stride", "row * c->width"),
    "sign of the first sum": ("rope", "- rounded(b * sine[pair], step, 0)", "+ rounded(b * sine[pair], step, 0)"),
    "products not rounded": ("rope", "if (rounds) turn(x, out, cosine, sine, pairs, dtype, dtype, HALF);", "if (0) ;"),
    "inverse ignored": ("rope", "if (c->inverse)", "if (0)"),
    "tokens taken for packed": ("rope", "token * c->token_stride", "token * c->heads * c->head_dim"),
    "other channels not copied": ("rope", "if (end < head_dim)", "if (0)"),
    "heads not normalised": ("qk_norm_rope", "if (c->norms)", "if (0)"),
    "no lower limit of up": ("gated_activation", "up = up < -limit ? -limit : up;", ""),
    "limit not rounded": ("gated_activation", "rounded((float)c->limit, dtype, 0)", "(float)c->limit"),
    "no limit": ("gated_activation", "if (has_limit)", "if (0)"),
    "alpha without its one": ("gated_activation", "up += 1.0f;", ""),
    "activation not rounded": (
        "gated_activation",
        "rounded_activation(gated(gate, exponent, dtype), dtype) * up",
        "gated(gate, exponent, dtype) * up",
    ),
    "no bounds of the exponent": ("gated_activation", "float x = bounded(exponent);", "float x = exponent;"),
}


def what_it_says_of_itself(kernel):
    """Properties in bits that tolerances cannot see."""
    if kernel == "rms_norm":
        torch.manual_seed(0)
        x, residual = torch.randn(40, 2).bfloat16(), torch.randn(40, 2).bfloat16() / 64
        normed, summed = rms_norm(x, None, 1e-6, residual, form="native")
        assert torch.equal(normed, rms_norm(summed, None, 1e-6, form="native"))
        missing = torch.tensor([2**31 - 1]).to(torch.int32).view(torch.float32)  # NaN with all bits set
        assert rms_norm(x, missing.expand(2).clone(), 1e-6, form="native").isnan().all()
        x, weight = torch.randn(40, 512).bfloat16(), torch.randn(512).bfloat16()
        twice = rms_norm(x, None, 1e-6, form="native") * weight
        assert torch.equal(rms_norm(x, weight, 1e-6, form="native"), twice)
    if kernel == "rope":
        test_bits_with_tables_of_the_input()
    if kernel == "gated_activation":
        test_the_activation_is_rounded()
        limited = swiglu(torch.tensor([[50.0, 50.0]]).bfloat16(), "native", limit=1.3)  # a bfloat16 limit is 1.296875
        assert torch.equal(limited, swiglu(torch.tensor([[1.296875, 1.296875]]).bfloat16(), "native"))
        test_silu_of_every_16_bit_number(torch.bfloat16)


@needs_library
@pytest.mark.parametrize("kernel", ["rms_norm", "rope", "gated_activation"])
def test_bits_within_a_kernel(kernel):
    what_it_says_of_itself(kernel)


def test_bits_with_tables_of_the_input():
    if native.load() is None:
        pytest.skip("the native form could not be compiled here")
    x, tables = torch.randn(5, 3, 64).bfloat16(), rope_tables(64, 1e4, 9, torch.bfloat16, CPU)
    given = x, torch.arange(5), *tables
    assert torch.equal(rope(*given, form="native"), rope(*given, form="reference"))


def test_the_activation_is_rounded():
    if native.load() is None:
        pytest.skip("the native form could not be compiled here")
    gate_up = torch.randn(40, 2 * 256).bfloat16()
    gate, up = gate_up.chunk(2, dim=-1)
    ones = torch.cat([gate, torch.ones_like(up)], dim=-1)
    assert torch.equal(swiglu(gate_up, "native"), swiglu(ones, "native") * up)


@needs_compiler
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant, tmp_path, monkeypatch, quick_compile, record_property):
    kernel, old, new = MUTANTS[mutant]
    source = build.SOURCE.read_text()
    assert old in source
    (tmp_path / "mutant.c").write_text(source.replace(old, new))
    library = open_library(build.built(tmp_path / "mutant.c", tmp_path))
    for module in MODULES:
        monkeypatch.setattr(module, "load", lambda: library)
    record_property("mutant", f"native {kernel}\t{mutant}\t{how_it_is_caught(kernel)}")


def how_it_is_caught(kernel):
    """What sees that the library that is loaded is broken; AssertionError if nothing does."""
    subject = kernels.load_subject(kernel)
    for case in subject.spec.TESTS:
        finding = check_case(subject, case, "native")
        if not finding:
            return finding.problems[0]
    with pytest.raises(AssertionError) as seen:
        what_it_says_of_itself(kernel)
    return f"its bits: {str(seen.value)[:60]!r}"

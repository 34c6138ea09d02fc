"""Where there is no native form the plain torch form runs and says so."""

import pytest
import torch
from native_models import exact_logits, needs_native, streams, tiny
from tiny_checkpoints import error_of_spread, largest_error, logits_by_chunks

from wholecurve.engine.load import build_model
from wholecurve.errors import UserError
from wholecurve.kernels.native import build
from wholecurve.models.llama import Llama
from wholecurve.models.native import NativeLlama, build_native_llama, unsupported
from wholecurve.models.native.library import load, open_library

MISSING = "no C++ compiler, or WHOLECURVE_NATIVE=0"


@pytest.fixture
def asked_again(tmp_path, monkeypatch):
    """A process in which nobody has asked for the libraries, with an empty cache folder."""
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "native")
    load.cache_clear()
    yield monkeypatch
    load.cache_clear()


def without_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")


def with_a_compiler_of_no_libraries(monkeypatch):
    """It writes what it was told to compile to where the library should be."""
    script = build.cache_folder().parent / "cxx"
    script.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo "$@" > "$2"; shift; done\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


@pytest.mark.parametrize(
    "hide",
    [
        without_compiler,
        lambda patch: patch.setenv("CXX", "/bin/false"),
        lambda patch: patch.setenv("CXX", "/no/such/compiler"),
        lambda patch: patch.setenv("WHOLECURVE_NATIVE", "0"),
        lambda patch: patch.setattr(build, "CXX_FLAGS", ("--no-such-flag",)),
        with_a_compiler_of_no_libraries,
    ],
    ids=["no compiler", "a compiler that fails", "none where CXX says", "turned off", "flags refused", "no libraries"],
)
def test_what_has_no_library_runs_in_plain_torch(asked_again, hide, capsys):
    hide(asked_again)
    config, weights = tiny("narrow")
    for dtype in (torch.float32, torch.bfloat16):
        assert unsupported(config, dtype) == MISSING
        model = build_model(config, weights, dtype, "cpu")
        assert type(model) is Llama and model.dtype == dtype
        out, err = capsys.readouterr()
        assert out == "" and err == f"wholecurve: the plain torch form runs, several times slower: {MISSING}\n"
    logits = logits_by_chunks(build_model(config, weights, torch.float32, "cpu"), streams("narrow")[0][:9], [9])
    assert largest_error(logits, exact_logits("narrow")[0][:9]) < 1e-5


def test_float16_runs_in_plain_torch(capsys):
    config, weights = tiny("narrow")
    assert unsupported(config, torch.float16) == "it has no float16"
    model = build_model(config, weights, torch.float16, "cpu")
    assert type(model) is Llama and "slower: it has no float16\n" in capsys.readouterr().err
    logits = logits_by_chunks(model, streams("narrow")[0][:9], [9])
    assert error_of_spread(logits, exact_logits("narrow")[0][:9]) < 0.01


def test_heads_that_are_too_wide_run_in_plain_torch(capsys):
    config, _ = tiny("narrow")
    wide = type(config)(**{**vars(config), "head_dim": 258})
    assert unsupported(wide, torch.float32) == "head_dim 258 is above 256"
    with pytest.raises(UserError, match=r"^file: tensor model\.layers\.0\.self_attn\.q_proj\.weight has shape"):
        build_model(wide, tiny("narrow")[1], torch.float32, "cpu", "file")
    assert "slower: head_dim 258 is above 256\n" in capsys.readouterr().err


@needs_native
def test_a_cpu_gets_the_native_form(capsys):
    config, weights = tiny("narrow")
    model = build_model(config, weights, torch.float32, "cpu", threads=2)
    assert type(model) is NativeLlama and model.threads == 2 and unsupported(config, torch.bfloat16) is None
    assert capsys.readouterr() == ("", "")
    assert build_model(config, weights, torch.float32, "cpu").threads == torch.get_num_threads()


@needs_native
def test_damaged_weights_are_refused_as_in_the_plain_form():
    config, weights = tiny("narrow")
    name = "model.layers.1.mlp.down_proj.weight"
    for change, wanted in (
        ({name: weights[name][:, 1:]}, rf"^file: tensor {name} has shape \(40, 55\), the config asks for \(40, 56\)$"),
        ({name: weights[name].int()}, rf"^file: tensor {name} is torch.int32; weights must be floating point$"),
        ({"spare": weights[name]}, "^file: tensor spare is not part of a Llama decoder"),
    ):
        with pytest.raises(UserError, match=wanted):
            build_native_llama(config, weights | change, torch.float32, 1, "file")
    with pytest.raises(UserError, match=f"^file: tensor {name} is missing$"):
        rest = {key: value for key, value in weights.items() if key != name}
        build_native_llama(config, rest, torch.float32, 1, "file")


def test_what_is_no_library_is_not_opened(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no library")
    assert open_library(path) is None and open_library(tmp_path / "missing.so") is None


@needs_native
def test_a_library_of_something_else_is_not_opened(tmp_path):
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" void pack() {}\n')
    assert open_library(build.built(build.Program(source), tmp_path)) is None

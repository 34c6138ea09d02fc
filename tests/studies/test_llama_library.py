"""The wrapper of llama.cpp's interface against a library that stands in for it: what crosses it, in which order."""

import shutil
import subprocess
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.contenders.llama_library import ContextSettings, LlamaContext, LlamaModel, open_library

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler on PATH")

SETTINGS = ContextSettings(
    cache_tokens=4096, batch_tokens=64, ubatch_tokens=32, max_sequences=8, threads=3, flash_attention=True,
    unified_cache=False, kv_cache="bf16",
)  # fmt: skip


@pytest.fixture
def library(tmp_path):
    source = Path(__file__).with_name("fake_llama.c")
    target = tmp_path / "libfake.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", str(source), "-o", str(target)], check=True)
    return open_library(target)


def test_settings_cross_in_the_order_of_the_interface(library):
    LlamaContext(LlamaModel(library, Path("model.gguf"), repack=True), SETTINGS)
    assert [library.wc_test_opened(i) for i in range(9)] == [4096, 64, 32, 8, 3, 1, 0, 30, 30]


def test_greedy_tokens_of_the_wanted_rows_come_back_in_order(library):
    context = LlamaContext(LlamaModel(library, Path("model.gguf"), repack=False), SETTINGS)
    chosen = context.decode([5, 6, 7, 8], [0, 1, 2, 9], [0, 0, 0, 3], [False, False, True, True])
    assert chosen == [7 + 2, 8 + 9 + 3000]
    assert context.decode([5], [0], [0], [False]) == []
    context.remove(3)
    assert [library.wc_test_removed(i) for i in (0, 3)] == [0, 1]


def test_refusals_are_sentences(library):
    with pytest.raises(UserError, match=r"missing\.gguf: llama\.cpp cannot load it"):
        LlamaModel(library, Path("missing.gguf"), repack=True)
    context = LlamaContext(LlamaModel(library, Path("model.gguf"), repack=True), SETTINGS)
    with pytest.raises(UserError, match="a batch of 65 tokens: llama_decode returned -100"):
        context.decode([1] * 65, list(range(65)), [0] * 65, [False] * 65)
    with pytest.raises(UserError, match="a batch of 1 tokens: the cache has no room"):
        context.decode([666], [0], [0], [True])


def test_a_model_says_what_it_is(library):
    model = LlamaModel(library, Path("model.gguf"), repack=True)
    assert model.describe() == "fake" and library.wc_system() == b"no processor"

"""Threads of the native form: what they report, their number, forked processes, and what sanitizers see."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from native_builds import SOURCES, copied_sources
from native_models import PagedSequences, native, needs_native, streams, tiny

from wholecurve.kernels.native import build
from wholecurve.models.native import build_native_llama
from wholecurve.models.native.llama import PARTS

pytestmark = needs_native
HERE = Path(__file__).parent


@pytest.mark.parametrize("count", [1, 9, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_timed_step_is_the_same_step(threads, count):
    model, tokens = native("narrow", torch.bfloat16, threads), streams("narrow")[0]
    expected = PagedSequences(model).logits([(0, 0, tokens[:count])])
    paged = PagedSequences(model)
    batch = paged.batch([(0, 0, tokens[:count])])
    times = model.timed(batch, [paged.cache])
    assert tuple(times) == PARTS and all(len(seconds) == threads for seconds in times.values())
    assert all(seconds >= 0 for part in times.values() for seconds in part)
    by_part = {part: sum(seconds) for part, seconds in times.items()}
    assert all(by_part[part] > 0 for part in PARTS if part != "waiting"), by_part
    assert torch.equal(batch.argmax, expected.argmax(dim=1))
    again = paged.batch([(0, 0, tokens[:count])])
    assert torch.equal(model(again, [paged.cache]), expected)


def test_parts_have_the_order_of_the_source():
    source = (SOURCES / "work.hpp").read_text()
    names = source.split("enum Part {")[1].split("}")[0].replace(",", " ").lower().split()
    assert names == [*PARTS, "parts"]


def test_more_threads_than_the_machine_has():
    model = build_native_llama(*tiny("narrow"), torch.float32, 71)
    assert model.threads == 71
    for count in (3, 100):
        chunk = [(0, 0, streams("narrow")[0][:count])]
        expected = PagedSequences(native("narrow", torch.float32)).logits(chunk)
        assert torch.equal(PagedSequences(model).logits(chunk), expected)


def test_two_block_sizes_at_once():
    """A model may serve caches of several block sizes, in turns."""
    model, tokens = native("narrow", torch.bfloat16, 2), streams("narrow")[0]
    several = [PagedSequences(model, block_size=size) for size in (16, 32, 64)]
    for start in range(0, 60, 7):
        first, *others = [paged.logits([(0, start, tokens[start : start + 7])]) for paged in several]
        assert all(torch.equal(first, other) for other in others)


def test_python_threads_take_turns():
    """The call leaves Python's lock; two steps at once would share buffers."""
    model, tokens = native("wide", torch.float32, 2), streams("wide")
    expected = [PagedSequences(model).logits([(0, 0, tokens[i])]) for i in range(2)]

    def repeated(i):
        return [PagedSequences(model).logits([(0, 0, tokens[i])]) for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for right, answers in zip(expected, pool.map(repeated, range(2)), strict=True):
            assert all(torch.equal(answer, right) for answer in answers)


PROGRAM = """
import os, signal, sys
import torch
from native_models import PagedSequences, native, streams

model, tokens = native("narrow", torch.float32, 2), streams("narrow")
paged = PagedSequences(model)
expected = paged.logits([(0, 0, tokens[0][:30])])
child = os.fork()
if not child:
    signal.alarm(60)  # a lock that nobody opens ends it
    assert torch.equal(paged.logits([(1, 0, tokens[0][:30])]), expected)
    native.cache_clear()
    del model, paged
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert torch.equal(paged.logits([(0, 0, tokens[0][:30])]), expected)
print("done")  # and the process ends while the model lives
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own_and_all_processes_end():
    environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "done\n", "")


def sanitized(folder, sources, flags):
    """Run native_driver.cpp, compiled with a sanitizer. Skips where the compiler has none."""
    (folder / "empty.cpp").write_text("int main() {}\n")
    command = [
        *build.find_compiler("CXX", build.CXX_COMPILERS),
        "-std=c++20",
        "-g",
        "-pthread",
        "-march=native",
        *flags,
    ]
    probe = subprocess.run([*command, "-o", str(folder / "empty"), str(folder / "empty.cpp")], capture_output=True)
    if probe.returncode or subprocess.run([folder / "empty"], capture_output=True).returncode:
        pytest.skip(f"no working {flags[-1]} here")
    program = [*command, "-ffp-contract=off", "-DELEMENT=BFloat16", f"-I{sources}", "-o", str(folder / "driver")]
    subprocess.run([*program, str(HERE / "native_driver.cpp")], check=True, capture_output=True)
    return subprocess.run([folder / "driver"], capture_output=True, text=True, timeout=200)


SANITIZERS = {"races": ("-O1", "-fsanitize=thread"), "memory": ("-O0", "-fsanitize=address,undefined")}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_see_nothing(sanitizer, tmp_path):
    answer = sanitized(tmp_path, SOURCES, SANITIZERS[sanitizer])
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_a_missing_barrier_is_seen(tmp_path):
    sources = copied_sources(tmp_path / "sources")
    text = (sources / "step.hpp").read_text()
    old = "take_from(shares_of(turn), turn.id, threads_, f);\n    }\n    meet(turn);"
    assert text.count(old) == 1
    (sources / "step.hpp").write_text(text.replace(old, old.replace("meet(turn);", "if (part != OUTPUT) meet(turn);")))
    answer = sanitized(tmp_path, sources, SANITIZERS["races"])
    assert answer.returncode and "data race" in answer.stderr

"""Shared by all tests: threads of parallel workers, and the real model."""

import os

import hypothesis
import pytest

# A shared machine stalls now and then; no test asserts how long an example takes.
hypothesis.settings.register_profile("wholecurve", deadline=None)
hypothesis.settings.load_profile("wholecurve")

# Parallel workers share the cores. torch reads this when it is first imported, which no worker has done yet.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def one_thread():
    """Tiny matrices on several threads are slower, and far slower when something else runs as well."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def real_model_files():
    """The embedded SmolLM2 checkpoint, fetched if need be; skips only where it cannot be had."""
    from wholecurve.errors import UserError
    from wholecurve.models import store
    from wholecurve.models.resolve import resolve

    try:
        store.fetch("smollm2-135m-instruct")
    except UserError as error:
        if not str(error).startswith("cannot fetch"):
            raise
        pytest.skip(f"the real model is not in the cache: {error}")
    return resolve("smollm2-135m-instruct")


def pytest_collection_modifyitems(items):
    """Bit-exactness is claimed for the processors on which it was measured; elsewhere these tests would only guess."""
    from wholecurve.runs.provenance import hardware

    machine = hardware()
    if "avx512_bf16" in machine["cpu_features"]:
        return
    reason = f"bit-exact sums are pinned for processors with AVX-512 BF16, this is {machine['cpu']}"
    for item in items:
        if item.get_closest_marker("bit_exact"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    """What tests have to tell beside passing: stored files of other tools, and how broken kernels were caught."""
    print_properties(terminalreporter, "sample", "files of other tools")
    print_properties(terminalreporter, "mutant", "broken kernels: kernel, what is broken, what saw it")


def print_properties(terminalreporter, name, title):
    """A section with the values that tests recorded under a property, sorted."""
    rows = [
        value
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for key, value in getattr(report, "user_properties", [])
        if key == name and report.when == "call"
    ]
    if rows:
        terminalreporter.section(title)
        for row in sorted(rows):
            terminalreporter.write_line(row)

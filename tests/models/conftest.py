import pytest


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """All tests of this room run on one thread."""


@pytest.fixture(scope="session")
def real_weights(real_model_files):
    """(config, float32 weights) of SmolLM2, read from its quantised GGUF."""
    return real_model_files.read()

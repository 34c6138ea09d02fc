import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices on several threads are slower, and far slower when something else runs as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def real_weights(real_model_files):
    """(config, float32 weights) of SmolLM2, read from its quantised GGUF."""
    return real_model_files.read()

from importlib.util import find_spec

import pytest
import torch

# triton has no macOS build; what needs it inside the other files is skipped by name
collect_ignore = [] if find_spec("triton") else ["test_compiled_kernels.py"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors on several threads are slower, and much slower when something else runs as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

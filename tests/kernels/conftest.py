from importlib.util import find_spec

import pytest

# triton has no macOS build; what needs it inside the other files is skipped by name
collect_ignore = [] if find_spec("triton") else ["test_compiled_kernels.py"]


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """All tests of this room run on one thread."""

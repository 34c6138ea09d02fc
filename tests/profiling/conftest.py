from importlib.util import find_spec

import pytest

# triton has no macOS build; the other files of this room need none
NEED_TRITON = (
    "compile",
    "measured",
    "counting",
    "interpreter",
    "sanitizer",
    "checks",
    "resources",
    "laboratory",
    "gpu_day",
    "gpu_day_engine",
    "model_launches",
)
collect_ignore = [] if find_spec("triton") else [f"test_{name}.py" for name in NEED_TRITON]


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """All tests of this room run on one thread."""

import pytest

from wholecurve.models.folder import read_folder
from wholecurve.models.llama import build_llama


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """All tests of this room run on one thread."""


@pytest.fixture(scope="session")
def real_f16_weights(real_model_files):
    """(config, F16 weights) of SmolLM2 from the derived folder, which is read far faster than the quantised GGUF."""
    return read_folder(real_model_files.hf_folder())


@pytest.fixture(scope="module")
def real_model(real_f16_weights, request):
    """SmolLM2 in the dtype that the test gives as its parameter."""
    return build_llama(*real_f16_weights, request.param)

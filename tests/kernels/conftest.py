import kernel_suite
import pytest


def pytest_generate_tests(metafunc):
    if metafunc.cls is not None and issubclass(metafunc.cls, kernel_suite.KernelSuite):
        kernel_suite.parametrise(metafunc)


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """All tests of this room run on one thread."""

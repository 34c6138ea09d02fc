import importlib
import subprocess
import sys

import pytest
import torch

from wholecurve import kernels
from wholecurve.kernels import native
from wholecurve.kernels.forms import choose_form, form_for

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # every import of it fails
from wholecurve import kernels
for name in kernels.KERNELS:
    kernels.load_subject(name)
from wholecurve.kernels.rms_norm import rms_norm
import torch
print(rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0).tolist())
"""
IMPORTING = """
import sys
from wholecurve import kernels
for name in kernels.KERNELS:
    kernels.load_subject(name)
print("triton" in sys.modules)
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_default_form_of_each_device(name):
    kernel = importlib.import_module(f"wholecurve.kernels.{name}")
    possible = {"reference", "cpu", "native", "triton", "interpret"}
    assert {"reference", "triton", "interpret"} <= set(kernel.FORMS) <= possible
    on_cpu = "cpu" if "cpu" in kernel.FORMS else "reference"
    if "native" in kernel.FORMS and native.load() is not None:
        on_cpu = "native"
    assert [kernel.form_for(device) for device in ("cuda", "cpu", "meta")] == ["triton", on_cpu, "reference"]
    assert kernel.form_for(torch.device("cuda", 3)) == "triton"
    assert kernels.load_subject(name).forms == kernel.FORMS


def test_named_form_wins_and_unknown_ones_are_refused():
    assert choose_form("reference", "cpu", ("reference", "cpu")) == "reference"
    assert choose_form(None, "cpu", ("reference", "cpu")) == form_for("cpu", ("reference", "cpu")) == "cpu"
    with pytest.raises(ValueError, match="'triton' does not exist for this kernel, it has reference, cpu"):
        choose_form("triton", "cpu", ("reference", "cpu"))


def test_unknown_kernels_are_refused():
    for load in (kernels.load_spec, kernels.load_subject):
        with pytest.raises(ValueError, match="there is no kernel 'swish'; there are rms_norm, rope"):
            load("swish")


def test_kernels_work_without_triton():
    answer = run(WITHOUT_TRITON)
    assert answer.stdout.startswith("[[0.84"), answer.stderr


def test_importing_kernels_does_not_import_triton():
    answer = run(IMPORTING)
    assert answer.stdout.strip() == "False", answer.stderr

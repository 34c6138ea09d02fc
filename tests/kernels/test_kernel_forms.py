import subprocess
import sys

import pytest
import torch

from wholecurve.kernels import decode_attention, kv_store, prefill_attention, rms_norm, rope, swiglu
from wholecurve.kernels.forms import choose_form, form_for

# what each kernel runs by default on (cuda, cpu, a device without a form of its own)
DEFAULTS = {
    rms_norm: ("triton", "cpu", "reference"),
    decode_attention: ("triton", "cpu", "reference"),
    prefill_attention: ("reference", "cpu", "reference"),
    kv_store: ("reference", "cpu", "reference"),
    swiglu: ("reference", "cpu", "reference"),
    rope: ("reference", "reference", "reference"),
}

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # every import of it fails
from wholecurve.kernels import decode_attention, kv_store, prefill_attention, rms_norm, rope, swiglu
import torch
print(rms_norm.rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0).tolist())
"""


@pytest.mark.parametrize("kernel", DEFAULTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_default_form_of_each_device(kernel):
    assert tuple(kernel.form_for(device) for device in ("cuda", "cpu", "meta")) == DEFAULTS[kernel]
    assert kernel.form_for(torch.device("cuda", 3)) == DEFAULTS[kernel][0]
    assert "reference" in kernel.FORMS


def test_named_form_wins_and_unknown_ones_are_refused():
    assert choose_form("reference", "cpu", ("reference", "cpu")) == "reference"
    assert choose_form(None, "cpu", ("reference", "cpu")) == form_for("cpu", ("reference", "cpu")) == "cpu"
    with pytest.raises(ValueError, match="'triton' does not exist for this kernel, it has reference, cpu"):
        choose_form("triton", "cpu", ("reference", "cpu"))


def test_kernels_work_without_triton():
    answer = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert answer.stdout.startswith("[[0.84"), answer.stderr


def test_importing_kernels_does_not_import_triton():
    names = ", ".join(kernel.__name__.rpartition(".")[2] for kernel in DEFAULTS)
    code = f"import sys; from wholecurve.kernels import {names}; "
    answer = subprocess.run(
        [sys.executable, "-c", code + "print('triton' in sys.modules)"], capture_output=True, text=True
    )
    assert answer.stdout.strip() == "False", answer.stderr

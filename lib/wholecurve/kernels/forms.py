"""Which form of a kernel runs: the choice by device, and the choice by name."""

import torch

from wholecurve.kernels import native

DEVICE_FORM = {"cuda": "triton", "cpu": "cpu"}


def form_for(device, available):
    """Name of the form that runs on `device` when nothing else is asked for.

    device: a torch.device or its name. available: the forms that this kernel has; "reference" is always one
    of them and is what runs where the form of the device is missing. On a CPU "native" runs where the kernel has it
    and it could be compiled; an input that it does not take goes to the "cpu" form from there.
    """
    wanted = DEVICE_FORM.get(torch.device(device).type, "reference")
    if wanted == "cpu" and "native" in available and native.load() is not None:
        return "native"
    return wanted if wanted in available else "reference"


def choose_form(form, device, available):
    """The form to run: `form` if given, else the one for `device`. ValueError for a form that it lacks."""
    if form is None:
        return form_for(device, available)
    if form not in available:
        raise ValueError(f"form {form!r} does not exist for this kernel, it has {', '.join(available)}")
    if form == "native" and native.load() is None:
        raise ValueError(
            "form 'native' does not exist here: it needs a C compiler, and WHOLECURVE_NATIVE must not be 0"
        )
    return form


def require(condition, message):
    """ValueError with `message` unless `condition` holds: the shape contract right before a launch."""
    if not condition:
        raise ValueError(message)

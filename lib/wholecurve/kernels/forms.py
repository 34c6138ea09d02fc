"""Which form of a kernel runs: the choice by device, and the choice by name."""

import torch

DEVICE_FORM = {"cuda": "triton", "cpu": "cpu"}


def form_for(device, available):
    """Name of the form that runs on `device` when nothing else is asked for.

    device: a torch.device or its name. available: the forms that this kernel has; "reference" is always one
    of them and is what runs where the form of the device is missing.
    """
    wanted = DEVICE_FORM.get(torch.device(device).type, "reference")
    return wanted if wanted in available else "reference"


def choose_form(form, device, available):
    """The form to run: `form` if given, else the one for `device`. ValueError for a form that it lacks."""
    if form is None:
        return form_for(device, available)
    if form not in available:
        raise ValueError(f"form {form!r} does not exist for this kernel, it has {', '.join(available)}")
    return form


def require(condition, message):
    """ValueError with `message` unless `condition` holds: the shape contract right before a launch."""
    if not condition:
        raise ValueError(message)

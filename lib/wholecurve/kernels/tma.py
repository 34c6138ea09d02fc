"""When a Triton form loads tiles through tensor descriptors, which NVIDIA GPUs from sm_90 on serve by the TMA unit."""

import contextlib

import torch

ALIGNMENT = 16  # bytes: of the address and of every stride but the last
meta_has_tma = True  # what a meta tensor stands for; see `meta_stands_for`


@contextlib.contextmanager
def meta_stands_for(target):
    """Inside the context, launches of meta tensors choose as on this compile target ("sm_90", "gfx942", …)."""
    global meta_has_tma
    former, meta_has_tma = meta_has_tma, target.startswith("sm_") and int(target[3:]) >= 90
    try:
        yield
    finally:
        meta_has_tma = former


def has_tma(device):
    """Whether a device serves tensor descriptors in hardware; "meta" stands for one that does where nothing else is
    said.
    """
    if device.type == "cuda" and torch.version.hip is None:
        return torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "meta" and meta_has_tma


def describable(tensor):
    """Whether a tensor descriptor can describe this tensor: it has elements, and its rows begin at multiples of 16
    bytes. A meta tensor has no address and counts as aligned.
    """
    aligned = tensor.device.type == "meta" or tensor.data_ptr() % ALIGNMENT == 0
    strides = [stride * tensor.itemsize for stride in tensor.stride()[:-1]]
    return tensor.numel() > 0 and tensor.stride(-1) == 1 and aligned and all(step % ALIGNMENT == 0 for step in strides)

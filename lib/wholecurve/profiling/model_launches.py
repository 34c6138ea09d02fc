"""A whole model in one form of its kernels, and the launches that a step of it makes."""

import contextlib
import inspect

import torch

from wholecurve.kernels.launch import Launch
from wholecurve.kernels.tma import meta_stands_for


@contextlib.contextmanager
def forced_form(module, form):
    """Inside the block every kernel that a module of models has imported runs in `form`, whatever the device.

    module: such as `wholecurve.models.llama`. Yields the names of those kernels.
    """
    kernels = {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__.startswith("wholecurve.kernels.")
        and "form" in inspect.signature(function).parameters
    }
    for name, function in kernels.items():
        setattr(module, name, in_form(function, form))
    try:
        yield sorted(kernels)
    finally:
        for name, function in kernels.items():
            setattr(module, name, function)


def in_form(function, form):
    """A kernel that runs in this form."""

    def kernel(*arguments, **options):
        return function(*arguments, **{**options, "form": form})

    return kernel


@contextlib.contextmanager
def recorded_launches():
    """Inside the block launches of Triton kernels are noted, in order, in the list that it yields, and none is run."""
    found, run = [], Launch.run
    Launch.run = lambda launch, interpreted: found.append(launch)
    try:
        yield found
    finally:
        Launch.run = run


@torch.inference_mode()
def step_launches(module, model, batch, caches, target):
    """The launches of one step of a model on the meta device, as a GPU of this compile target would make them.

    A meta tensor has no values: a step that reads one on the host (`item`, `tolist`, a mask as index), and so could
    not be captured in a CUDA graph, fails here. Launches with an empty grid are left out.
    """
    with meta_stands_for(target), forced_form(module, "triton"), recorded_launches() as found:
        model(batch, caches)
    return [launch for launch in found if 0 not in launch.grid]


def distinct_launches(launches):
    """The first of each group of launches that compile to the same kernel: as many per layer as in the model."""
    kept = {}
    for launch in launches:
        kept.setdefault(specialisation(launch), launch)
    return list(kept.values())


def specialisation(launch):
    """What the compiled kernel depends on: kinds of arguments, divisibility of numbers by 16, constexprs."""
    return (launch.name, *map(argument_kind, launch.arguments), *sorted(map(str, launch.options.items())))


def argument_kind(argument):
    """What Triton specialises one argument on, at least as fine as Triton does it."""
    if isinstance(argument, torch.Tensor):
        return "tensor", argument.dtype, argument.device.type == "meta" or argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return "int", argument == 1, argument % 16 == 0, argument.bit_length() > 31
    if hasattr(argument, "base"):  # a tensor descriptor
        return "descriptor", argument.base.dtype, tuple(argument.block_shape)
    return type(argument).__name__

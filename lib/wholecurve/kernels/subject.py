"""A kernel as the laboratory sees it: how to make inputs, call it, and know what it must answer."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType

import torch

from wholecurve.kernels import native
from wholecurve.kernels.inputs import Inputs


@dataclasses.dataclass(frozen=True)
class Expected:
    """What one output must be.

    value: float64 for a floating-point output, which is compared as methodology §6 says: |o − r| ≤ ulps · eps(dtype
    of the output) · scale + rtol · |r|, where scale is None for the largest |r| of the row (last dimension), or a
    tensor that broadcasts to the output (Σ|a||b| for a product). An integer or bool `value` is compared exactly.
    where: None, or a bool tensor of the elements that are defined; the others may hold anything.
    """

    value: torch.Tensor
    ulps: float = 2.0
    rtol: float = 0.0
    scale: torch.Tensor | None = None
    where: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Subject:
    """name: of the kernel's folder. operation: its public function. forms: what it has. spec: its `spec` module.

    make(inputs: Inputs, **case) gives the operation's keyword arguments (without `form`); it touches nothing but
    shapes and dtypes that the case names, so that a formula and a static compile of the case speak of that call.
    expected(**arguments) gives an Expected for each output, in float64 from the same arguments.
    writes: arguments that the operation changes in place; they count as outputs after the returned ones.
    baselines: compositions of plain torch calls by name, with the operation's arguments; "eager" is the unfused one.
    """

    name: str
    operation: Callable
    forms: tuple[str, ...]
    spec: ModuleType
    make: Callable[..., dict]
    expected: Callable[..., tuple[Expected, ...]]
    writes: tuple[str, ...] = ()
    baselines: Mapping[str, Callable] = dataclasses.field(default_factory=dict)

    def arguments(self, case, device="cpu", seed=0):
        """Fresh arguments of the operation for a case (a dict of `spec.TESTS` or of `spec.BENCH`)."""
        return self.make(Inputs(device, seed), **case)

    def cost(self, case, **changes):
        """The Cost of a case by the kernel's formula."""
        return self.spec.cost(**case, **changes)

    def available_forms(self, device="cpu"):
        """The forms that can run on a kind of device here, by name: "native" only where it could be compiled."""
        absent = {"triton"} if device == "cpu" else {"interpret", "cpu", "native"}
        if native.load() is None:
            absent |= {"native"}
        return [form for form in self.forms if form not in absent]

    def dtype(self, case):
        """The dtype of a case by name: its own or the default of `make`; None for a kernel that has only one."""
        known = inspect.signature(self.make).parameters.get("dtype")
        return case.get("dtype", known.default if known else None)

    def run(self, arguments, form=None):
        """Every output of one call: what it returns, then what it writes in place."""
        return self.outputs(self.operation(**arguments, form=form), arguments)

    def outputs(self, returned, arguments):
        """The tuple of outputs from what an operation or a variant of it returned."""
        if returned is None:
            returned = ()
        elif isinstance(returned, torch.Tensor):
            returned = (returned,)
        kept = tuple(output for output in returned if output is not None)
        return kept + tuple(arguments[name] for name in self.writes)

    def launches(self, arguments, config=None):
        """(the Triton launches of one call, what it returns) without running anything.

        config: None for the kernel's own choice, or one of `spec.CONFIGS`.
        """
        kernel = importlib.import_module(f"wholecurve.kernels.{self.name}.kernel")
        return kernel.launches(**arguments, **({} if config is None else {"config": config}))

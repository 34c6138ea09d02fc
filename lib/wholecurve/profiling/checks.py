"""The gate around one call: right numbers, nothing written that should not be, nothing left unwritten."""

import dataclasses

import torch

from wholecurve.kernels.launch import run_all
from wholecurve.profiling.gate import agreement
from wholecurve.profiling.guards import Guarded, PoisonedEmpty


@dataclasses.dataclass(frozen=True)
class Finding:
    """One checked call. problems: empty when it passed. worst_ratio: the largest error as a multiple of what is
    allowed, worst_output and worst_index: where that is.
    """

    kernel: str
    form: str
    case: dict
    problems: tuple[str, ...]
    worst_ratio: float
    worst_output: int
    worst_index: tuple

    def __bool__(self):
        return not self.problems


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Fresh random arguments of a case and what it must answer, for several calls that are checked on the same ones."""

    arguments: dict
    expected: tuple


def prepare(subject, case, device="cpu", seed=0):
    """The Prepared of a case; its definition in float64 is the longest part of a check."""
    arguments = subject.arguments(case, device, seed)
    return Prepared(arguments, subject.expected(**clones(arguments)))


def check_case(subject, case, form=None, *, device="cpu", seed=0, config=None, variant=None, prepared=None):
    """Run one case on fresh random inputs between guard bands and compare every output with its definition.

    form: None for the one that the device takes by default. config: one of `spec.CONFIGS`, for a Triton form.
    variant: None, or a function that is checked in place of the kernel: it takes the operation's arguments and gives
    either the outputs or (launches, outputs) as a `kernel.launches` does; form then only names it. prepared: of
    `prepare` for this case and device, None to prepare it here from `seed`.
    """
    guarded, prepared = Guarded(), prepared or prepare(subject, case, device, seed)
    expected = prepared.expected
    arguments = {
        name: guarded(value, name) if isinstance(value, torch.Tensor) else value
        for name, value in prepared.arguments.items()
    }
    with PoisonedEmpty() as allocated:
        outputs = run_guarded(subject, arguments, form, config, variant, device)
    problems = [f"{name} was written, or something around it" for name in guarded.changed(subject.writes)]
    if allocated.overrun():
        problems.append("something outside an allocated tensor was written")
    if len(outputs) != len(expected):
        problems.append(f"{len(outputs)} outputs where the definition has {len(expected)}")
    worst = (0.0, 0, ())
    for index, (output, wanted) in enumerate(zip(outputs, expected)):
        ratio, where, problem = compare_output(output, wanted)
        if problem:
            problems.append(f"output {index}: {problem}")
        if ratio > worst[0]:
            worst = (ratio, index, where)
    return Finding(subject.name, form or "default", case, tuple(problems), *worst)


def clones(arguments):
    """The same arguments in memory of their own."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def run_guarded(subject, arguments, form, config, variant, device):
    """The outputs of one call in a form, or of a variant."""
    if variant is None and form not in ("interpret", "triton"):
        return subject.run(arguments, form)
    interpreted = torch.device(device).type == "cpu"
    answer = subject.launches(arguments, config) if variant is None else variant(**arguments)
    if isinstance(answer, tuple) and answer and isinstance(answer[0], list):
        launches, answer = answer
        run_all(launches, interpreted)
    return subject.outputs(answer, arguments)


def compare_output(output, wanted):
    """(worst ratio, its index, problem or None) of one output against its Expected."""
    value, scale = wanted.value, wanted.scale
    if output.shape != value.shape:
        return torch.inf, (), f"its shape is {tuple(output.shape)}, it should be {tuple(value.shape)}"
    if not output.dtype.is_floating_point:
        differs = output != value.to(output.dtype)
        if wanted.where is not None:
            differs &= wanted.where
        if not differs.any():
            return 0.0, (), None
        where = tuple(int(part) for part in differs.nonzero()[0])
        return torch.inf, where, f"{int(differs.sum())} whole numbers differ, the first at {where}"
    if wanted.where is not None:
        if scale is None:
            finite = value.abs().where(value.isfinite() & wanted.where, 0.0)
            scale = finite.amax(dim=-1, keepdim=True) if finite.numel() else finite
        output, value = output.where(wanted.where, 0.0), value.where(wanted.where, 0.0)
    result = agreement(output, value, wanted.ulps, wanted.rtol, scale)
    problem = None
    if not result:
        place = result.worst_index
        problem = (
            f"worst at {place}: {float(output[place]):.6g} where {float(value[place]):.6g} is right, "
            f"{result.worst_ratio:.3g} times what is allowed"
        )
    return result.worst_ratio, result.worst_index, problem

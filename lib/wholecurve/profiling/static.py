"""Static profiles: every launch of a case compiled for a target without a GPU, one row each."""

from wholecurve.kernels.tma import meta_stands_for
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.devices import OF_TARGET, bound, read_device
from wholecurve.profiling.resources import resources
from wholecurve.profiling.rows import STATIC, cost_fields, families, row, triton_version


def static_rows(subject, case_name, case, target, *, device=None, config=None, variant=None, form="triton"):
    """One row per launch of a case on a target; bytes, FLOPs and bound are those of the whole call.

    Tensors are on the meta device, so a production case takes no memory. device: a `devices.Device` for the bound,
    None for the one that stands for the target,
    and no bound where none does. variant: a function like `kernel.launches`, named by `form`.
    """
    arguments = subject.arguments(case, "meta")
    with meta_stands_for(target):
        launches, _ = subject.launches(arguments, config) if variant is None else variant(**arguments)
    if config is None and any(launch.descriptors for launch in launches):
        config = getattr(subject.spec, "BY_DESCRIPTORS", None)
    changes = {} if config is None else {"config": config}
    cost = subject.cost(case, **changes)
    if device is None and target in OF_TARGET:
        device = read_device(OF_TARGET[target])
    limit = None if device is None else bound(cost, device)
    common = dict(kernel=subject.name, case=case_name, form=form, source=STATIC, target=target)
    common |= dict(device=None if device is None else device.name, dtype=subject.dtype(case))
    common |= cost_fields(cost, limit)
    return [row(launch=launch.name, **common, **compiled_fields(subject, launch, target)) for launch in launches]


def compiled_fields(subject, launch, target):
    """The columns of a compiled launch, or a note that says what the compiler does not take.

    A launch that spills carries the reason that `spec.SPILLS` gives for its name, where there is one.
    """
    try:
        found = resources(compile_launch(launch, target), target)
    except Exception as error:  # a target may lack a type or an instruction; the others still have their rows
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return {"versions": triton_version(), "note": f"not compiled: {reason[:200]}"}
    return {
        "note": getattr(subject.spec, "SPILLS", {}).get(launch.name) if found.spill_bytes else None,
        "registers": found.registers,
        "spill_bytes": found.spill_bytes,
        "stack_bytes": found.stack_bytes,
        "shared_bytes": found.shared_bytes,
        "num_warps": found.num_warps,
        "occupancy": found.occupancy,
        "matrix": families(found.matrix),
        "copies": families(found.copies),
        "versions": f"{triton_version()}, {found.assembler}",
    }

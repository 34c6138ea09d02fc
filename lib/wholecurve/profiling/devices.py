"""What a device can do at best, from `data/devices`, and what that allows a kernel at most. Loads no torch."""

import dataclasses
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.files import data_folder, read_json

DATASHEET = "datasheet"
CLASSES = (DATASHEET, "driver-derived", "measured read", "measured copy", "measured GEMM")
QUANTITIES = ("memory_bytes_per_s", "bfloat16_flops_per_s", "float8_flops_per_s", "vector_flops_per_s")
# the device that stands for a compile target where none is named
OF_TARGET = {"sm_90": "h200-sxm", "sm_100": "b200-sxm", "sm_120": "rtx-pro-6000", "gfx942": "mi300x"}


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """quantity: one of QUANTITIES. value: per second. kind: one of CLASSES. source: who says so."""

    quantity: str
    value: float
    kind: str
    source: str


@dataclasses.dataclass(frozen=True)
class Device:
    """name: for people. target: what Triton compiles for, None for a CPU. cache_bytes: last-level cache."""

    name: str
    target: str | None
    cache_bytes: int
    ceilings: tuple[Ceiling, ...]

    def ceiling(self, quantity, kinds=(DATASHEET,)):
        """The highest Ceiling of a quantity among these classes, None where there is none."""
        found = [one for one in self.ceilings if one.quantity == quantity and one.kind in kinds]
        return max(found, key=lambda one: one.value, default=None)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The least time that ceilings allow a cost: a bound, never a measurement.

    us: microseconds. limit: the Ceiling that sets it. amount: bytes or FLOPs that it has to serve.
    """

    us: float
    limit: Ceiling
    amount: float
    device: str

    def __str__(self):
        unit = "TB/s" if self.limit.quantity == "memory_bytes_per_s" else "TFLOP/s"
        what = "bytes" if unit == "TB/s" else f"FLOPs ({self.limit.quantity.partition('_')[0]})"
        return (
            f"at least {self.us:.3g} µs on one {self.device} "
            f"(bound: {self.amount:.3g} {what} at {self.limit.value / 1e12:.4g} {unit}, {self.limit.kind})"
        )


def bound(cost, device, kinds=(DATASHEET,)):
    """The Bound of a `kernels.cost.Cost` on a Device: its compulsory bytes and its FLOPs at the highest ceilings.

    None for a device that lacks a ceiling that the cost needs.
    """
    parts = []
    for quantity, amount in (("memory_bytes_per_s", cost.bytes_min), (f"{cost.unit}_flops_per_s", cost.flops)):
        ceiling = device.ceiling(quantity, kinds)
        if amount and ceiling is None:
            return None
        if amount:
            parts.append(Bound(amount / ceiling.value * 1e6, ceiling, amount, device.name))
    return max(parts, key=lambda one: one.us, default=None)


def device_names():
    """The devices of `data/devices` by file name."""
    return sorted(path.stem for path in data_folder("devices").glob("*.json"))


def read_device(name):
    """The Device of a file, or of a name in `data/devices`. UserError says which field is wrong, or which exist."""
    path = Path(name)
    if path.suffix != ".json":
        if name not in device_names():
            raise UserError(f"no device {name!r} in data/devices; there are {', '.join(device_names())}")
        path = data_folder("devices") / f"{name}.json"
    document = read_json(path)
    for field, kind in (("name", str), ("cache_bytes", int), ("ceilings", list)):
        if not isinstance(document.get(field), kind):
            raise UserError(f"{path}: {field} is {document.get(field)!r}; it must be of type {kind.__name__}")
    ceilings = tuple(read_ceiling(path, row, entry) for row, entry in enumerate(document["ceilings"]))
    return Device(document["name"], document.get("target"), document["cache_bytes"], ceilings)


def read_ceiling(path, row, entry):
    """One Ceiling of a device file."""
    where = f"{path}: ceilings[{row}]"
    if not isinstance(entry, dict):
        raise UserError(f"{where} is {entry!r}; it must be an object with quantity, value, class and source")
    for field, known in (("quantity", QUANTITIES), ("class", CLASSES)):
        if entry.get(field) not in known:
            raise UserError(f"{where}: {field} is {entry.get(field)!r}; it must be one of {', '.join(known)}")
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UserError(f"{where}: value is {value!r}; it must be a positive number per second")
    if not isinstance(entry.get("source"), str) or not entry["source"].strip():
        raise UserError(f"{where}: source is empty; every ceiling says where it is from")
    return Ceiling(entry["quantity"], float(value), entry["class"], entry["source"])

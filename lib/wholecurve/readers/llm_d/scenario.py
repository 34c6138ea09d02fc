"""The scenario of an llm-d benchmark report: its devices, engine, model and load, in both versions of the schema.

0.1 lists hosts (scenario.host.accelerator, one entry each) and copies the load generator's own arguments; 0.2 has a
stack of components and a load in standard terms. (llm-d-benchmark, benchmark_report/schema_v0_1.py, schema_v0_2.py and
native_to_br0_*.py.)
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.guidellm import config as guidellm_config
from wholecurve.readers.point import UNSTATED_DEVICES, known, short_model
from wholecurve.readers.record import Record

OLDEST = "0.1"
PARALLELISM = ("tp", "pp", "dp", "ep")
OPTIONAL = "parallelism.workers"
# More than any cluster has; larger numbers are damage.
MOST_DEVICES = 1_000_000
CONCURRENCIES = ("concurrency", "max_concurrency")
RATES = ("rate_qps", "request_rate", "qps", "qps_values")
PARALLEL_GENERATORS = (
    "load.standardized.parallelism",
    "load.metadata.load_parallel",
    "platform.load.metadata.load_parallel",
)


@dataclass(frozen=True)
class _Engine:
    """One host or component; ``devices`` counts those of all its replicas, None where the file does not say it."""

    tool: str | None
    model: str | None
    precision: str | None
    role: str | None
    replicas: int
    device: str | None
    devices: int | None
    parallelism: str


def columns(scenario: Record, version: str, notes: Notes) -> dict:
    """Contender, devices, model, precision, hardware and configuration."""
    engines = _hosts(scenario) if version == OLDEST else _stack(scenario)
    layout: Counter[str] = Counter()
    for one in engines:
        layout[" ".join(part for part in (one.role, one.parallelism) if part)] += one.replicas
    configuration = " + ".join(f"{n} × {one}" if n > 1 else one for one, n in layout.items() if one)
    names = [short_model(part) for part in (engines[0].tool, engines[0].model) if part]
    return {
        **UNSTATED_DEVICES,
        **_devices(scenario, engines, notes),
        "contender": (" ".join(names) or "unnamed engine") + (f" ({configuration})" if configuration else ""),
        **known(
            {
                "model": engines[0].model,
                "precision": engines[0].precision,
                "configuration": configuration or None,
            }
        ),
    }


def _devices(scenario: Record, engines: Sequence[_Engine], notes: Notes) -> dict:
    if any(one.devices is None for one in engines):
        notes.leave_out("devices: a host's count is missing or not a number from 1 up", scenario.where)
        return {}
    of_kind: Counter[str] = Counter()
    for one in engines:
        of_kind[one.device or "accelerator"] += one.devices
    notes.convert("the devices of all hosts are counted, those that only prefill too", scenario.where)
    return {
        "devices": of_kind.total(),
        "device_kind": "gpu",
        "source": "measured (gpu)",
        "hardware": " + ".join(f"{n} × {kind}" for kind, n in of_kind.items()),
    }


def _hosts(scenario: Record) -> list[_Engine]:
    tool = (_items(scenario, "platform.engine") or [Record("", {})])[0].optional_text("name")
    listed = scenario.raw("host.type")
    roles = [role if isinstance(role, str) else None for role in listed] if isinstance(listed, list) else []
    hosts = _items(scenario, "host.accelerator")
    if roles and len(roles) != len(hosts):
        raise UserError(
            f"{scenario.where}: host.type has {len(roles)} entries, host.accelerator {len(hosts)}; one each"
        )
    roles, hosts = roles or [None] * len(hosts), hosts or [Record(scenario.where, {})]
    shared = {
        "tool": tool,
        "model": scenario.optional_text("model.name"),
        "precision": scenario.optional_text("model.quantization"),
    }
    return [
        _Engine(
            **shared,
            role=role,
            **_accelerator(host, 1),
        )
        for role, host in zip(roles or [None], hosts)
    ]


def _stack(scenario: Record) -> list[_Engine]:
    parts = [one.part("standardized") for one in _items(scenario, "stack")]
    engines = [one for one in parts if one.raw("kind") == "inference_engine"] or [Record(scenario.where, {})]
    return [
        _Engine(
            tool=one.optional_text("tool"),
            model=one.optional_text("model.name"),
            precision=one.optional_text("model.quantization"),
            role=one.optional_text("role"),
            **_accelerator(_part(one, "accelerator"), one.raw("replicas")),
        )
        for one in engines
    ]


def _accelerator(accelerator: Record, replicas: object) -> dict:
    """Devices of a component: replicas × devices of one worker × workers.

    llm-d writes -1 for what its environment did not set, and multiplies such numbers, so one of them spoils the count.
    """
    of = Record(accelerator.where, {**accelerator.fields, "replicas": replicas})
    sizes = {name: of.raw(f"parallelism.{name}") for name in PARALLELISM}
    factors = [of.raw(name) for name in ("count", "replicas", OPTIONAL) if name != OPTIONAL or of.has(name)]
    unset = any(isinstance(size, int) and size < 1 for size in sizes.values())
    stated = all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MOST_DEVICES for n in factors)
    used = [f"{name}{size}" for name, size in sizes.items() if isinstance(size, int) and size > 1]
    return {
        "replicas": replicas if stated else 1,
        "device": of.optional_text("model"),
        "devices": math.prod(factors) if stated and not unset else None,
        "parallelism": " ".join(used),
    }


def _part(record: Record, name: str) -> Record:
    return record.part(name) if record.has(name) else Record(record.where, {})


def _items(record: Record, name: str) -> list[Record]:
    if not record.has(name):
        return []
    rows = record.raw(name)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise record.refuse(name, "a list of objects")
    return [Record(f"{record.where}, {name} {i}", row) for i, row in enumerate(rows, 1)]


def load(scenario: Record, version: str) -> dict:
    """Kind and level of the load. UserError where the file names none, or holds one of several load generators."""
    for name in PARALLEL_GENERATORS:
        if scenario.has(name) and scenario.raw(name) != "" and scenario.count(name, 1) > 1:
            raise UserError(
                f"{scenario.where}: {name} is {scenario.count(name)}: several load generators ran at once and a report "
                "holds one of them, so it has neither the load nor the throughput of the server"
            )
    place = "load.standardized" if version != OLDEST else "load.args"
    asked = scenario.part(place)
    if isinstance(asked.raw("strategy"), Mapping):
        return guidellm_config.load(Record(asked.where, {"args": asked.fields}))
    stage = scenario.optional_count("load.metadata.stage") or 0
    if isinstance(asked.raw("profile"), str):
        return _of_guidellm(asked, stage)
    if asked.has("load.stages"):
        return _of_inference_perf(asked, stage)
    return _of_fields(asked, CONCURRENCIES, RATES)


def _of_fields(asked: Record, concurrencies: Sequence[str], rates: Sequence[str]) -> dict:
    """An infinite rate means that the concurrency is the load, an infinite concurrency that the rate is."""
    concurrency, rate = (
        next((name for name in names if asked.has(name) and asked.state(name) != "infinite"), None)
        for names in (concurrencies, rates)
    )
    if rate:
        capped = {"configuration": f"at most {asked.count(concurrency, 1)} requests in flight"} if concurrency else {}
        return {"load_kind": "request_rate", "load": asked.positive(rate), **capped}
    if concurrency:
        return {"load_kind": "concurrency", "load": asked.count(concurrency, 1)}
    raise UserError(f"{asked.where}: names no concurrency and no request rate; the load of the point is needed")


def _of_guidellm(asked: Record, stage: int) -> dict:
    """Arguments of GuideLLM 0.4 to 0.7: the rate of a "concurrent" or "throughput" profile is a number of streams."""
    profile, rates = asked.text("profile"), asked.raw("rate")
    values = rates if isinstance(rates, list) else [rates]
    if profile == "synchronous":
        return {"load_kind": "concurrency", "load": 1}
    if stage >= len(values):
        raise UserError(f"{asked.where}: rate has {len(values)} values and none for stage {stage}; one is needed")
    of_stage = Record(asked.where, {"rate": values[stage]})
    if profile in ("concurrent", "throughput"):
        return {"load_kind": "concurrency", "load": of_stage.count("rate", 1)}
    if profile in ("async", "constant", "poisson"):
        return {"load_kind": "request_rate", "load": of_stage.positive("rate")}
    raise UserError(f"{asked.where}: profile is {profile!r}, whose rate is not in the file; the load is needed")


def _of_inference_perf(asked: Record, stage: int) -> dict:
    stages = asked.raw("load.stages")
    if not isinstance(stages, list) or stage >= len(stages) or not isinstance(stages[stage], Mapping):
        raise asked.refuse("load.stages", f"a list with stage {stage}")
    return _of_fields(Record(f"{asked.where}, stage {stage}", stages[stage]), ("concurrency_level",), ("rate",))

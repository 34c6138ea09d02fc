"""What a GuideLLM benchmark was asked to do: its strategy, model and data, in the places of the report's versions.

0.8 has benchmarks[].config and a config on top; 0.4 to 0.7 have benchmarks[].config and args on top; before that the
strategy stood in benchmarks[].args or benchmarks[].scheduler.
"""

import json
from collections.abc import Mapping

from wholecurve.curves.gates.conditions import UNSTATED_WORKLOAD
from wholecurve.errors import UserError
from wholecurve.readers.point import known, lengths, short_model
from wholecurve.readers.record import Record

STRATEGIES = ("config.strategy", "args.strategy", "scheduler.strategy")
PROFILES = ("config.profile", "args.profile", "benchmarker.profile")
MODELS_OF_BENCHMARK = ("config.backend.model", "worker.backend_model", "benchmarker.backend.model")
MODELS_OF_REPORT = ("config.spec.backend.model", "args.model")
DATA = ("config.spec.data", "args.data")
LENGTHS = ("prompt_tokens", "prompt_tokens_stdev", "output_tokens", "output_tokens_stdev")
# Settings of synthetic data that make another workload of the same lengths, and the value that does not.
CHANGES = {"turns": 1, "prefix_tokens": 0, "prefix_buckets": None, "prompt_tokens_min": None, "prompt_tokens_max": None}


def conditions(report: Record, benchmark: Record) -> dict:
    """Contender, workload, load and model of one benchmark. UserError where its strategy has no one load."""
    model = _first_text(benchmark, MODELS_OF_BENCHMARK) or _first_text(report, MODELS_OF_REPORT)
    label = _first_text(report, ("config.metadata.labels.name",))
    return known(
        {
            "contender": label or (short_model(model) if model else "unnamed model"),
            "workload": _workload(report),
            **load(benchmark),
            "model": model,
        }
    )


def load(benchmark: Record) -> dict:
    """Kind and level of the load of one benchmark. UserError for a strategy that has no one load."""
    place = next((place for place in STRATEGIES if benchmark.has(place)), STRATEGIES[0])
    strategy = benchmark.part(place)
    kind = strategy.text("type_")
    cap = _cap(benchmark)
    if kind == "synchronous":
        return {"load_kind": "concurrency", "load": 1}
    if kind == "concurrent":
        return {"load_kind": "concurrency", "load": _streams(strategy)}
    if kind in ("constant", "poisson"):
        capped = {"configuration": f"at most {cap} requests in flight"} if cap else {}
        return {"load_kind": "request_rate", "load": strategy.positive("rate"), **capped}
    if kind == "throughput" and cap:
        return {"load_kind": "concurrency", "load": cap, "configuration": "throughput strategy"}
    raise UserError(
        f"{strategy.where}: type_ is {kind!r}, which has no load level of its own (throughput sends everything at "
        "once, trace replays times); synchronous, concurrent, constant or poisson is needed"
    )


def _streams(strategy: Record) -> int:
    """The number of streams, which some versions call max_concurrency; both may stand there and must then agree."""
    streams, most = (strategy.optional_count(name, 1) for name in ("streams", "max_concurrency"))
    if streams is not None and most is not None and streams != most:
        raise UserError(f"{strategy.where}: streams is {streams}, but max_concurrency {most}; one load is needed")
    return strategy.count("max_concurrency" if streams is None and most is not None else "streams", 1)


def _cap(benchmark: Record) -> int | None:
    """What the user capped in flight. The strategy's own max_concurrency is the pool's size where nobody set a cap."""
    place = next((place for place in PROFILES if isinstance(benchmark.raw(place), Mapping)), None)
    return benchmark.part(place).optional_count("max_concurrency", 1) if place else None


def _first_text(record: Record, names: tuple[str, ...]) -> str | None:
    values = (record.raw(name) for name in names)
    return next((value.strip() for value in values if isinstance(value, str) and value.strip()), None)


def _workload(report: Record) -> str:
    data = next((report.raw(place) for place in DATA if report.has(place)), None)
    first = data[0] if isinstance(data, list) and data else data
    settings = _settings(first)
    if settings is None:
        return first.strip()[:60] if isinstance(first, str) and first.strip() else UNSTATED_WORKLOAD
    of = Record(f"{report.where}, data", settings)
    if not of.has("prompt_tokens"):
        return _first_text(of, ("source",)) or UNSTATED_WORKLOAD
    into, into_std, out, out_std = (of.number(name) if of.has(name) else None for name in LENGTHS)
    changed = [_setting(of, name) for name, usual in CHANGES.items() if of.has(name) and of.raw(name) != usual]
    return ", ".join([lengths(into, out, into_std or 0.0, out_std or 0.0), *changed])


def _setting(of: Record, name: str) -> str:
    return f"{name}={of.raw(name)}" if isinstance(of.raw(name), int | str) else name


def _settings(data: object) -> Mapping | None:
    """Settings of a data source: an object, JSON in a text, or "prompt_tokens=256,output_tokens=128"."""
    if isinstance(data, Mapping):
        return data
    if not isinstance(data, str):
        return None
    if "prompt_tokens=" in data:
        return dict(pair.split("=", 1) for pair in data.split(",") if "=" in pair)
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None

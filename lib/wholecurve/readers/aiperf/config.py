"""What AIPerf and GenAI-Perf were asked to do, from the configuration that they copy into their result (input_config).

AIPerf from 0.10 on lists phases[], older versions have loadgen; GenAI-Perf has perf_analyzer.stimulus, and before
that plain arguments.
"""

from collections.abc import Mapping
from pathlib import Path

from wholecurve.curves.gates.conditions import UNSTATED_WORKLOAD
from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.point import known, lengths, short_model
from wholecurve.readers.record import Record

# Where the load stands, by the version that writes it there, and what the two fields are called.
LOADS = (
    ("loadgen", "concurrency", "request_rate"),
    ("perf_analyzer.stimulus", "concurrency", "request_rate"),
    ("", "concurrency", "request_rate"),
)
MODELS = ("endpoint.model_names", "model_names", "model")
# (mean and standard deviation of input lengths, the same of output lengths)
PROMPTS = (
    ("input.prompt.input_tokens.mean", "input.prompt.input_tokens.stddev"),
    ("synthetic_input_tokens_mean", "synthetic_input_tokens_stddev"),
)
OUTPUTS = (
    ("input.prompt.output_tokens.mean", "input.prompt.output_tokens.stddev"),
    ("output_tokens_mean", "output_tokens_stddev"),
)


def measured_phase(path: Path) -> str | None:
    """The name of the phase that a file phases/NAME/… is of; None for the file of the whole run.

    UserError for the warm-up, which has the same fields as a measurement, and for the only measured phase, which is in
    the run's own file a second time.
    """
    folder = path.resolve().parent.parent
    if folder.name != "phases":
        return None
    manifest = folder.parent / "phase_manifest.json"
    if not manifest.is_file():
        raise UserError(f"{path}: {manifest.name} is not in the folder above; it says whether this phase is a warm-up")
    content = read_content(manifest)
    listed = content.first.raw("phases")
    phases = (
        [Record(str(manifest), one) for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    )
    measured = [one.raw("phase_name") for one in phases if one.raw("phase_kind") == "profiling"]
    if path.resolve().parent.name not in measured:
        raise UserError(f"{path}: is of a phase that {manifest.name} does not list as measured; a warm-up is no point")
    if len(measured) == 1:
        raise UserError(
            f"{path}: the run has one measured phase, and its own file in {folder.parent} has it too; read that"
        )
    return path.resolve().parent.name


def conditions(record: Record, phase: str | None = None) -> dict:
    """Contender, workload, load and model of a run, or of one phase of it by name.

    UserError, naming input_config, where it states no load, or where the phases of a run have several.
    """
    if not record.has("input_config"):
        raise UserError(
            f"{record.where}: input_config is {record.state('input_config')}; the load stands nowhere else "
            "(request throughput × latency is what was achieved, not what was set)"
        )
    config = record.part("input_config")
    model = _model(config)
    return known(
        {
            "contender": short_model(model) if model else "unnamed model",
            "workload": _workload(config),
            **_load(config, phase),
            "model": model,
        }
    )


def _load(config: Record, phase: str | None) -> dict:
    if config.has("phases"):
        return _of_phases(config, phase)
    for group, concurrency, rate in LOADS:
        place = config if not group else config.part(group) if config.has(group) else None
        if place is not None and (place.has(concurrency) or place.has(rate)):
            return _of_fields(place, concurrency, rate)
    raise UserError(f"{config.where}: no concurrency and no request rate in it; the load of the point is needed")


def _of_phases(config: Record, name: str | None) -> dict:
    """The load of the measured phase; several measured phases must have one load, or there is no one load."""
    phases = config.raw("phases")
    listed = phases if isinstance(phases, list) else []
    measured = [
        Record(f"{config.where}, phase {i}", phase)
        for i, phase in enumerate(listed, 1)
        if isinstance(phase, Mapping) and "profiling" in (phase.get("kind"), phase.get("name"))
    ]
    chosen = [phase for phase in measured if name in (None, phase.raw("name"))]
    if not chosen:
        raise config.refuse("phases", f"a list with a phase {name or 'of kind profiling'}")
    loads = [_of_phase(phase) for phase in chosen]
    if any(load != loads[0] for load in loads):
        raise UserError(f"{config.where}: {len(loads)} measured phases with different loads; one load is needed")
    return loads[0]


def _of_phase(phase: Record) -> dict:
    for varies in ("adaptive_scale", "rate_series"):
        if phase.has(varies) and phase.raw(varies) is not False:
            raise UserError(f"{phase.where}: {varies} changes the load during the run; one load is needed")
    if phase.raw("type") == "fixed_schedule":
        raise UserError(f"{phase.where}: type fixed_schedule replays a trace, which has no one load; one is needed")
    load = _of_fields(phase, "concurrency", "rate")
    ramps = [ramp for ramp in ("concurrency_ramp", "rate_ramp") if phase.has(ramp)]
    return load | ({"configuration": f"{ramps[0]} inside the measured phase"} if ramps else {})


def _of_fields(place: Record, concurrency: str, rate: str) -> dict:
    """A request rate makes an open loop; a concurrency beside it is then only a cap."""
    place = Record(place.where, {name: _single(place.raw(name)) for name in (concurrency, rate)})
    if not place.has(rate):
        return {"load_kind": "concurrency", "load": place.count(concurrency, 1)}
    load = {"load_kind": "request_rate", "load": place.positive(rate)}
    if place.has(concurrency):
        load["configuration"] = f"at most {place.count(concurrency, 1)} requests in flight"
    return load


def _single(value: object) -> object:
    """GenAI-Perf writes some settings as lists of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _model(config: Record) -> str | None:
    items = config.raw("models.items")
    if isinstance(items, list) and items and isinstance(items[0], Mapping):
        return Record(config.where, items[0]).optional_text("name")
    for name in MODELS:
        first = config.raw(name)
        first = first[0] if isinstance(first, list) and first else first
        if isinstance(first, str) and first.strip():
            return first.strip()
    return None


def _workload(config: Record) -> str:
    datasets = config.raw("datasets")
    if isinstance(datasets, list) and len(datasets) == 1 and isinstance(datasets[0], Mapping):
        return _of_dataset(Record(f"{config.where}, dataset 1", datasets[0]))
    public = config.raw("input.public_dataset")
    if isinstance(public, str) and public:
        return public
    # The arguments of GenAI-Perf hold default lengths also where the prompts came from a file.
    if config.raw("prompt_source") in ("file", "dataset", "payload"):
        return UNSTATED_WORKLOAD
    return _named(_first(config, PROMPTS), _first(config, OUTPUTS))


def _of_dataset(dataset: Record) -> str:
    public = dataset.raw("dataset")
    if isinstance(public, str) and public:
        return public
    named = _named(_length(dataset, "prompts.isl"), _length(dataset, "prompts.osl"))
    more = [name for name in ("turns", "prefix_prompts", "images", "audio", "video") if dataset.has(name)]
    return ", ".join([named, *more])


def _named(into: tuple[float, float] | None, out: tuple[float, float] | None) -> str:
    if into is None:
        return UNSTATED_WORKLOAD
    return lengths(into[0], out[0] if out else None, into[1], out[1] if out else 0.0)


def _length(dataset: Record, name: str) -> tuple[float, float] | None:
    """(mean, standard deviation) of a length given as a number, {value} or {mean, stddev}; None for other forms."""
    if not isinstance(dataset.raw(name), Mapping):
        return (dataset.positive(name), 0.0) if dataset.has(name) else None
    other_forms = {"median", "peaks", "points"} & set(dataset.raw(name))
    return None if other_forms else _first(dataset.part(name), (("mean", "stddev"), ("value", "stddev")))


def _first(record: Record, pairs: tuple[tuple[str, str], ...]) -> tuple[float, float] | None:
    for mean, std in pairs:
        # GenAI-Perf writes -1 for a length that was not set.
        if record.has(mean) and record.raw(mean) != -1:
            return record.positive(mean), record.number(std) if record.has(std) else 0.0
    return None

"""What a row of llama-bench ran on and with: devices, settings, and the contender's name."""

from pathlib import PureWindowsPath

from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

# Everything that is not configuration; all other fields of a row, also of later versions, are settings.
_MEASURED = {"test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}
_TEST = {"n_prompt", "n_gen", "n_depth", "test", "t/s"}
# The size of a step: the load of a prefill row, so no part of its contender's name unless it has to be.
STEP = ("n_batch", "n_ubatch")
_IN_BASE = {"model_type", "model", "backends", "backend"}
_CPU_BACKENDS = {"CPU", "BLAS", "ZenDNN"}


def base_name(record: Record) -> str:
    """ "llama.cpp gemma4 26B.A4B Q8_0 ROCm"; the file's name stands in for a model type that is missing."""
    model = model_type(record) or model_file(record) or "model unstated"
    backend = record.optional_text(_first(record, "backends", "backend")) or ""
    return " ".join(f"llama.cpp {model} {backend}".split())


def model_type(record: Record) -> str | None:
    """Architecture, size and quantisation: "gemma4 26B.A4B Q8_0"; tables call it the model."""
    return record.optional_text(_first(record, "model_type", "model"))


def model_file(record: Record) -> str:
    """The model's file without its folders, or ""."""
    path = record.optional_text("model_filename") or ""
    return PureWindowsPath(path).name


def precision(record: Record) -> str | None:
    """The quantisation, which follows architecture and size in the model type: "Q8_0" of "gemma4 26B.A4B Q8_0"."""
    words = (model_type(record) or "").split()
    return " ".join(words[2:]) or None


def settings(record: Record) -> dict[str, str]:
    """Every setting as it is written in a name, "n_gpu_layers 99"; model files without their folders."""
    made = {}
    for name, value in record.fields.items():
        if name in _MEASURED | _TEST | _IN_BASE or not isinstance(value, str | int | float):
            continue
        shown = model_file(record) if name == "model_filename" else " ".join(str(value).split())
        made[name] = f"{name} {shown}"
    return made


def devices(record: Record, notes: Notes) -> dict:
    """devices, device_kind, source and hardware of a JSON or CSV row."""
    backends = {name.strip() for name in (record.optional_text("backends") or "").split(",") if name.strip()}
    gpus = [name.strip() for name in (record.optional_text("gpu_info") or "").split(", ") if name.strip()]
    accelerators = backends - _CPU_BACKENDS
    if not accelerators or not gpus:
        if not backends:
            notes.leave_out("backends is not in the row: what the model ran on is not known", record.where)
            return device_columns("server", 1, None)
        return device_columns("cpu", 1, record.optional_text("cpu_info"))
    if record.optional_text("devices") == "none":
        return device_columns("cpu", 1, record.optional_text("cpu_info"))
    if record.has("n_gpu_layers") and record.number("n_gpu_layers") == 0:
        return _without_layers(record, notes)
    if len(accelerators) > 1:
        notes.leave_out("several GPU backends list the same GPUs: how many the model ran on is not known", record.where)
        return device_columns("server", 1, ", ".join(gpus))
    notes.convert("devices is how many GPUs gpu_info lists, or fewer where devices or split_mode choose among them")
    return device_columns("gpu", _chosen(record, len(gpus)), ", ".join(gpus))


def device_columns(kind: str, count: int, hardware: str | None) -> dict:
    """The four columns that say what a point ran on."""
    source = {"server": "device unstated"}.get(kind, kind)
    return {"devices": count, "device_kind": kind, "source": f"measured ({source})", "hardware": hardware}


def _without_layers(record: Record, notes: Notes) -> dict:
    """n_gpu_layers 0: the weights stay with the CPU, but a GPU backend takes large products of a prompt over."""
    prompt = record.count("n_prompt") > 0
    if prompt and record.state("no_op_offload") not in ("1", "true"):
        notes.convert("n_gpu_layers is 0, but a GPU backend takes over products of prompts: neither CPU nor GPU alone")
        return device_columns("server", 1, record.optional_text("cpu_info"))
    notes.convert("n_gpu_layers is 0: the CPU computed, whatever the backend is called")
    return device_columns("cpu", 1, record.optional_text("cpu_info"))


def _chosen(record: Record, listed: int) -> int:
    if record.optional_text("split_mode") == "none":
        return 1
    chosen = record.optional_text("devices") or "auto"
    return listed if chosen == "auto" else len(chosen.split("/"))


def _first(record: Record, *names: str) -> str:
    return next((name for name in names if record.has(name)), names[0])

"""What a vLLM result says about its configuration: contender, devices and workload from its label and parameters.

The parameters are what ``--metadata KEY=VALUE`` (texts) and ``vllm bench sweep`` (numbers too) add to the result's own
fields.
"""

import re
from collections.abc import Sequence
from math import prod

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

# fmt: off
KNOWN = frozenset(
    (
        "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "best_of", "num_prompts",
        "request_rate", "burstiness", "max_concurrency", "use_beam_search", "duration", "completed", "failed",
        "good_completed", "total_input_tokens", "total_output_tokens", "request_goodput", "request_goodput:",
        "max_concurrent_requests", "rtfx", "run_number", "tokens_per_user", "tokens_per_gpu", "ramp_up_strategy",
        "ramp_up_start_rps", "ramp_up_end_rps"
    )
)
# fmt: on
MEASURED = re.compile(r"(mean|median|std|p\d+(\.\d+)?|spec_decode|probe|diffusion)_.*|.*(_throughput|_per_s|_ms)")
DEVICES = ("num_gpus", "gpus", "gpu_count", "n_gpus")
PARALLEL = (
    ("tensor_parallel_size", "tp"),
    ("pipeline_parallel_size", "pp"),
    ("data_parallel_size", "dp"),
)
LENGTHS = (("random_input_len", "random_output_len"), ("input_len", "output_len"))
HARDWARE = ("hardware", "gpu_type", "gpu_name", "accelerator")
PRECISION = ("precision", "dtype", "quantization")


def parameters(record: Record) -> dict[str, object]:
    """Metadata and sweep parameters of a row, names with underscores: what is no field of the result itself."""
    swept = record.has("run_number")
    found = {}
    for name, value in record.fields.items():
        if not isinstance(name, str) or name in KNOWN or MEASURED.fullmatch(name) or value == "" or name == "":
            continue
        if isinstance(value, str) or (swept and isinstance(value, int | float)):
            found[name.replace("-", "_")] = value
    return found


class Names:
    """Names the contender of each row of a file, so that two configurations never share one."""

    def __init__(self, records: Sequence[Record]):
        rows = [parameters(r) for r in records]
        self._keys = [key for key in dict.fromkeys(k for row in rows for k in row) if self._tells(key, rows, records)]
        self._several_models = len({str(r.raw("model_id")) for r in records}) > 1

    def columns(self, record: Record, notes: Notes) -> dict:
        """Contender, workload, devices and what else a row says about its configuration."""
        given = parameters(record)
        model, label = record.optional_text("model_id"), record.optional_text("label")
        engine = "vllm" if record.has("run_number") else record.optional_text("backend")
        short = model.rstrip("/").rsplit("/", 1)[-1] if model else None
        name = label or " ".join(filter(None, (engine, short))) or "vllm"
        if label and self._several_models and short:
            name += f" {short}"
        settings = [f"{key}={given[key]}" for key in self._keys if key in given]
        columns = {
            "contender": " ".join([name, *settings]),
            "workload": _workload(given),
            **_devices(record, given, notes),
            "model": model,
            "configuration": ", ".join(f"{key}={value}" for key, value in given.items()) or None,
            "hardware": _first_text(given, HARDWARE),
            "precision": _first_text(given, PRECISION),
        }
        return {key: value for key, value in columns.items() if value is not None}

    @staticmethod
    def _tells(key: str, rows: list[dict], records: Sequence[Record]) -> bool:
        """True for a parameter that tells configurations apart, and is neither workload nor load under another name."""
        if any(key in names for names in (*LENGTHS, ("dataset_name",))):
            return False
        values = [str(row.get(key)) for row in rows]
        if values == [str(r.raw("max_concurrency")) for r in records]:
            return False
        return len(set(values)) > 1 or any(r.has("run_number") for r in records)


def _workload(given: dict) -> str:
    dataset = str(given.get("dataset_name", ""))
    for names in LENGTHS:
        if all(name in given for name in names):
            dataset = dataset or ("random" if names[0].startswith("random") else "")
            spread = given.get("random_range_ratio")
            jitter = f", range ratio {spread}" if spread not in (None, "0", "0.0", 0) else ""
            return f"{dataset} {given[names[0]]} in / {given[names[1]]} out{jitter}".strip()
    return dataset or "decode"


def _devices(record: Record, given: dict, notes: Notes) -> dict:
    """All devices of the server where the parameters name them; else the server counts as one, and that is said."""
    named = Record(record.where, given)
    try:
        direct = next((key for key in DEVICES if key in given), None)
        sizes = [next((key for key in keys if key in given), None) for keys in PARALLEL]
        used = [direct] if direct else [key for key in sizes if key] if any(sizes[:1]) else []
        devices = prod(named.count(key, least=1) for key in used)
    except UserError as error:
        notes.leave_out(f"devices: {str(error).removeprefix(f'{record.where}: ')}", record.where)
        used = []
    if not used:
        notes.convert("the file does not say how many devices the server has: throughput is of the whole server")
        return {"devices": 1, "device_kind": "server", "source": "measured (device unstated)"}
    notes.convert(f"devices is {' × '.join(used)}, from the file's metadata or sweep parameters")
    return {"devices": devices, "device_kind": "gpu", "source": "measured (gpu)"}


def _first_text(given: dict, names: Sequence[str]) -> str | None:
    return next((str(given[name]) for name in names if name in given), None)

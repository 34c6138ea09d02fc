"""What an SGLang serving result says about its configuration: contender, devices and workload."""

from collections.abc import Mapping, Sequence

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

SETTINGS = {"tp_size": "tp", "pp_size": "pp", "dp_size": "dp", "ep_size": "ep", "speculative_algorithm": "speculation"}
UNSTATED = {"devices": 1, "device_kind": "server", "source": "measured (device unstated)"}


class Names:
    """Names the contender of each row of a file, so that two configurations never share one."""

    def __init__(self, records: Sequence[Record]):
        self._several_backends = _several({str(r.raw("backend")) for r in records}, _engine)
        self._several_settings = _several({(_backend(r), _configuration(r)) for r in records}, lambda pair: pair[0])
        self._several_models = len({str(_server(r).get("model_path")) for r in records}) > 1

    def columns(self, record: Record, notes: Notes) -> dict:
        """Contender, workload, devices and what else a row says about its configuration."""
        server, backend, tag = _server(record), record.optional_text("backend"), record.optional_text("tag")
        model = server.get("model_path") if isinstance(server.get("model_path"), str) else None
        short = model.rstrip("/").rsplit("/", 1)[-1] if model else None
        engine = (backend if self._several_backends else _engine(backend)) if backend else "sglang"
        settings = _configuration(record)
        name = [tag or engine, short if not tag or self._several_models else None]
        name += [f"({settings})"] if settings and self._several_settings else []
        columns = {
            "contender": " ".join(filter(None, name)),
            "workload": _workload(record),
            **_devices(record, notes),
            "model": model,
            "precision": _precision(server),
            "configuration": settings or None,
        }
        return {key: value for key, value in columns.items() if value is not None}


def _several(values: set, group) -> bool:
    """True when two values belong to one group."""
    return len({group(value) for value in values}) < len(values)


def _backend(record: Record) -> str:
    return str(record.raw("backend"))


def _engine(backend: str) -> str:
    return backend.split("-")[0]


def _server(record: Record) -> Mapping:
    """The server's arguments; of a disaggregated server those of its first decode worker."""
    info = record.raw("server_info")
    if not isinstance(info, Mapping):
        return {}
    workers = info.get("decode")
    first = workers[0] if isinstance(workers, list) and workers else info
    return first if isinstance(first, Mapping) else {}


def _configuration(record: Record) -> str:
    server = _server(record)
    given = {short: server.get(name) for name, short in SETTINGS.items()}
    return ", ".join(f"{short} {value}" for short, value in given.items() if isinstance(value, int | float | str))


def _precision(server: Mapping) -> str | None:
    for name in ("quantization", "dtype"):
        if isinstance(server.get(name), str) and server[name] != "auto":
            return server[name]
    return None


def _workload(record: Record) -> str:
    dataset = record.optional_text("dataset_name")
    if not dataset or not dataset.startswith("random") or not record.has("random_input_len"):
        return dataset or "decode"
    lengths = f"{record.count('random_input_len')} in / {record.count('random_output_len')} out"
    # Lengths are drawn from ratio × length up to length; only 1 means that all requests have them.
    ratio = record.number("random_range_ratio") if record.has("random_range_ratio") else 1
    return f"{dataset} {lengths}" + (f", range ratio {ratio:g}" if ratio != 1 else "")


def _devices(record: Record, notes: Notes) -> dict:
    """All devices of the server, prefill and decode workers together, where server_info names them."""
    info = record.raw("server_info")
    workers = [info]
    if isinstance(info, Mapping) and any(isinstance(info.get(role), list) for role in ("prefill", "decode")):
        workers = [w for role in ("prefill", "decode") for w in info.get(role) or []]
    if not all(isinstance(w, Mapping) and "tp_size" in w for w in workers) or not workers:
        notes.convert("the file does not say how many devices the server has: throughput is of the whole server")
        return UNSTATED
    if all(w.get("device") == "cpu" for w in workers):
        return {"devices": 1, "device_kind": "cpu", "source": "measured (cpu)"}
    try:
        devices = sum(_of_worker(Record(f"{record.where}, server_info", w)) for w in workers)
    except UserError as error:
        notes.leave_out(f"devices: {str(error).removeprefix(f'{record.where}, ')}", record.where)
        return UNSTATED
    notes.convert("devices is tp × pp × dp of server_info (with attention data parallel dp lies within tp)")
    return {"devices": devices, "device_kind": "gpu", "source": "measured (gpu)"}


def _of_worker(worker: Record) -> int:
    sizes = [worker.count(name, least=1) if worker.has(name) else 1 for name in ("tp_size", "pp_size", "dp_size")]
    if worker.raw("enable_dp_attention") is True:
        sizes[2] = 1
    return sizes[0] * sizes[1] * sizes[2]

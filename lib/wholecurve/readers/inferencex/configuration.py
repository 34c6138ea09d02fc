"""What a row of InferenceX measured: contender, configuration and workload."""

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.inferencex.fields import flag, is_agentic, place
from wholecurve.readers.record import Record


def base_name(record: Record) -> str:
    """Hardware, framework, precision and, where it is used, speculative decoding: "h100 sglang fp8 mtp"."""
    spec = text(record, "spec_method", "spec_decoding")
    words = [
        text(record, "hardware", "hw"),
        text(record, "framework"),
        text(record, "precision"),
        "" if spec.lower() in ("none", "false") else spec,
    ]
    return " ".join(word for word in words if word) or "InferenceX"


def parts(record: Record) -> dict[str, str]:
    """Everything else that is configured, as it is written in a name; what is not stated is empty."""
    return {
        "model": text(record, "model", "infmax_model_prefix"),
        "disaggregated": "disaggregated" if _is(record, "disagg") else "",
        **(_pools(record) if _is(record, "disagg") else _engine(record)),
        "image": text(record, "image"),
        "offload": _offload(record),
        "router": _labelled(record, "router"),
        "transfer": _labelled(record, "kv_p2p_transfer"),
        "recipe": _labelled(record, "recipe_fingerprint", "recipe", digits=12),
    }


def workload(record: Record, notes: Notes) -> str:
    """ "1024 in / 1024 out", "agentic-coding" with the data set where it is stated, or "decode" where nothing is."""
    if is_agentic(record):
        dataset = text(record, "dataset.hf_dataset_name")
        return f"agentic-coding {dataset}".strip()
    lengths = [record.optional_count(name, 1) for name in ("isl", "osl")]
    if None in lengths:
        notes.leave_out("isl or osl is not in the row: its workload is not known", record.where)
        return "decode"
    return "{} in / {} out".format(*lengths)


def load(record: Record) -> int:
    """The concurrency; for agents it is how many session trees are live, which older rows call users."""
    names = [name for name in ("conc", "users") if record.has(name)]
    loads = [record.count(name, 1) for name in names]
    if len(set(loads)) > 1:
        raise UserError(f"{record.where}: conc is {loads[0]} and users {loads[1]}; one number of sessions is needed")
    return loads[0] if loads else record.count("conc", 1)


def date(record: Record) -> str:
    """The day of the run, or "" where it is not stated."""
    return text(record, "date")


def text(record: Record, *names: str) -> str:
    """The first of these fields that holds something, as text."""
    for name in names:
        if record.has(name) and (found := _as_text(record.raw(name))):
            return found
    return ""


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(filter(None, map(_as_text, value.values())))
    if isinstance(value, list):
        return " ".join(filter(None, map(_as_text, value)))
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else ""
    return " ".join(str(value).split())


def _engine(record: Record) -> dict[str, str]:
    """Parallelism of one engine; dashboard rows repeat it for both roles."""
    role = next((r for r in ("", "decode_", "prefill_") if text(record, f"{r}tp") not in ("", "0")), "")
    return _parallelism(record, role)


def _pools(record: Record) -> dict[str, str]:
    """The two pools, each as one part: "prefill 1 worker tp16 ep1 on 16 GPUs"."""
    made = {}
    for role in ("prefill", "decode"):
        gpus = text(record, f"num_{role}_gpu")
        words = [role, *filter(None, _parallelism(record, f"{role}_").values()), f"on {gpus} GPUs" if gpus else ""]
        made[role] = " ".join(filter(None, words))
    return made


def _parallelism(record: Record, role: str) -> dict[str, str]:
    made = {}
    for key in ("tp", "pp", "pcp_size", "dcp_size", "ep"):
        value = text(record, place(record, role + key))
        made[key] = f"{key.removesuffix('_size')}{value}" if value else ""
    made["dp_attention"] = "dp-attention" if _is(record, f"{role}dp_attention") else ""
    workers = text(record, f"{role}num_workers")
    made["workers"] = f"{workers} workers" if workers not in ("", "0", "1") else ""
    made["hw"] = text(record, f"{role}hw") if role else ""
    return made


def _offload(record: Record) -> str:
    mode = text(record, "kv_offloading", "offload_mode", "metrics.offload_mode")
    backend = text(record, "kv_offload_backend", "metrics.kv_offload_backend")
    return f"kv offload {mode} {backend}".strip() if mode not in ("", "none", "off") else ""


def _labelled(record: Record, name: str, label: str = "", digits: int | None = None) -> str:
    value = text(record, name)[:digits]
    return f"{label or name} {value}" if value else ""


def _is(record: Record, name: str) -> bool:
    """A flag in a name: only true counts."""
    try:
        return flag(record, name) is True
    except UserError:
        return False

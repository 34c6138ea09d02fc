"""The model of a step study: a checkpoint or a dummy, in the form and on the device that are measured."""

import dataclasses
from typing import Literal, get_args

import torch

from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import build_llama
from wholecurve.runs.provenance import hardware, usable_cores
from wholecurve.studies.steps.dummy import dummy_config, dummy_model, dummy_weights

Form = Literal["auto", "native", "torch"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True)
class StepModel:
    """A loaded model. name: as in the record. weights: "checkpoint" or "random". form: "native" or "torch".
    graphs: whether decode steps run as CUDA graphs. note: why a form was not the one asked for, "" else.
    """

    model: object
    name: str
    weights: str
    form: str
    graphs: bool
    threads: int
    note: str = ""

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype_name(self) -> str:
        """Such as "bfloat16"."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def plan(self) -> dict:
        """What the numbers of a study depend on, as far as it is the model's."""
        config = dataclasses.asdict(self.config) | {"eos_token_ids": list(self.config.eos_token_ids)}
        names = {"model": self.name, "weights": self.weights, "form": self.form, "graphs": self.graphs}
        return names | {"dtype": self.dtype_name, "device": self.device.type, "threads": self.threads, "config": config}

    @property
    def row(self) -> dict:
        """Columns that every row of the study has."""
        on_gpu = self.device.type == "cuda"
        return {
            "model": self.name + (" (random weights)" if self.weights == "random" else ""),
            "source": "measured (gpu)" if on_gpu else "measured (cpu)",
            "device": torch.cuda.get_device_name(0) if on_gpu else hardware()["cpu"],
            "dtype": self.dtype_name,
            "form": self.form,
            "threads": None if on_gpu else self.threads,
        }

    def contender(self, about: dict) -> str:
        """A name for rows whose study was given none."""
        parts = [f"wholecurve {self.form}", self.dtype_name]
        if self.device.type == "cuda" and about["kind"] == "decode":
            parts.append("graphs" if self.graphs else "no graphs")
        if about["kind"] == "decode":
            drafts = about["drafts"]
            parts.append(f"{drafts} drafts at {about['acceptance']:g} {about['reading']}" if drafts else "no drafts")
        return ", ".join(parts)


def load_step_model(
    model: str | None = None,
    *,
    dummy: str | None = None,
    dtype: str = "bfloat16",
    device: str | None = None,
    form: Form = "auto",
    graphs: bool | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> StepModel:
    """A checkpoint by the names that `resolve` knows, or a dummy by its size.

    form "auto" is the native one on a CPU that has it. graphs: None for CUDA graphs on a GPU. UserError for what does
    not exist or does not go together.
    """
    if form not in get_args(Form):
        raise UserError(f"form {form!r}; supported: {', '.join(get_args(Form))}")
    place = device_of(device)
    on_gpu = place.type == "cuda"
    if graphs and not on_gpu:
        raise UserError("--graphs needs a CUDA device; on a CPU there are none")
    if threads is not None and threads < 1:
        raise UserError(f"threads is {threads}; it must be at least 1")
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    loaded = weights_source(model, dummy, dtype, seed)
    chosen, note = choose_form(form, loaded.config, DTYPES[dtype], place)
    built = loaded.native(threads) if chosen == "native" else loaded.torch(place)
    use_graphs = on_gpu if graphs is None else graphs
    return StepModel(built, loaded.name, loaded.weights, chosen, use_graphs, threads, note)


def weights_source(model: str | None, dummy: str | None, dtype: str, seed: int) -> "CheckpointSource | DummySource":
    """Where the weights of a checkpoint, or of a dummy of this size, come from; UserError for both or neither."""
    if (model is None) == (dummy is None):
        raise UserError("name one model, or one size with --dummy")
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}; supported: {', '.join(DTYPES)}")
    return DummySource(dummy, DTYPES[dtype], seed) if dummy is not None else CheckpointSource(model, DTYPES[dtype])


def device_of(device: str | None) -> torch.device:
    """The device by name, None for the GPU where there is one; UserError for one that this machine lacks."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise UserError(f"device {device!r}; supported: cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no CUDA device here; give --device cpu")
    return torch.device(device)


def choose_form(form: Form, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[str, str]:
    """("native" or "torch", why not the native one); UserError where "native" was asked for and cannot be had."""
    if form == "torch":
        return "torch", ""
    reason = "a GPU runs the torch form"
    if device.type == "cpu":
        from wholecurve.models.native import unsupported

        reason = unsupported(config, dtype)
    if reason is None:
        return "native", ""
    if form == "native":
        raise UserError(f"form 'native' cannot be had: {reason}")
    return "torch", "" if device.type == "cuda" else f"torch form: {reason}"


class DummySource:
    """Random weights of a size by name."""

    weights = "random"

    def __init__(self, name: str, dtype: torch.dtype, seed: int):
        self.name, self.config, self.dtype, self.seed = name, dummy_config(name), dtype, seed

    def torch(self, device: torch.device):
        return dummy_model(self.config, self.dtype, device, self.seed)

    def native(self, threads: int):
        from wholecurve.models.native import build_native_llama

        return build_native_llama(self.config, dummy_weights(self.config, self.dtype, self.seed), self.dtype, threads)


class CheckpointSource:
    """The weights of a checkpoint, read once."""

    weights = "checkpoint"

    def __init__(self, name: str, dtype: torch.dtype):
        from wholecurve.models.resolve import resolve

        files = resolve(name)
        self.name, self.dtype, self.where = files.name, dtype, str(files.gguf or files.folder)
        self.config, self.tensors = files.read()

    def torch(self, device: torch.device):
        return build_llama(self.config, self.tensors, self.dtype, device, self.where)

    def native(self, threads: int):
        from wholecurve.models.native import build_native_llama

        return build_native_llama(self.config, self.tensors, self.dtype, threads, self.where)

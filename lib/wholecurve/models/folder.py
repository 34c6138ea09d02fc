"""Hugging Face folders (config.json + safetensors): read one, write one that transformers and others load."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.models.config import ModelConfig, config_from_hf, config_to_hf


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise UserError(f"{index}: weight_map must be an object of tensor names and file names")
        return sorted({folder / name for name in weight_map.values()})
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    raise UserError(f"{folder}: no model.safetensors (nor model.safetensors.index.json)")


def read_folder(folder: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Config and weights, in the type they are stored in, under their Hugging Face names."""
    config = config_from_hf(read_json(folder / "config.json"), str(folder / "config.json"))
    weights = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                weights.update({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118
        except FileNotFoundError:
            raise UserError(f"{file}: missing, named by the index") from None
        except SafetensorError as error:
            raise UserError(f"{file}: truncated or damaged safetensors file ({error})") from None
    return config, weights


def write_folder(folder: Path, config: ModelConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors with every matrix and vector in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    converted = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
    save_file(converted, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config_to_hf(config, str(dtype).removeprefix("torch.")), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")

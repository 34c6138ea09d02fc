"""Engines that a study can measure, one file each. They run in worker processes, never in the study's own."""

from dataclasses import dataclass
from importlib import import_module

from wholecurve.studies.contenders.base import Contender, ContenderSettings


@dataclass(frozen=True)
class EngineEntry:
    """Where a contender's class is, and what must be there before it can run."""

    module: str
    class_name: str
    package: str | None = None  # import name of the package that it needs in this environment
    peer: str | None = None  # name of the peer that must be set up, in an environment of its own
    reads_gguf: bool = False


_HERE = "wholecurve.studies.contenders"
ENGINES = {
    "wholecurve": EngineEntry(f"{_HERE}.wholecurve_engine", "WholecurveContender", package="torch"),
    "transformers": EngineEntry(f"{_HERE}.transformers_static", "TransformersContender", package="transformers"),
    "openvino": EngineEntry(f"{_HERE}.openvino_genai", "OpenVinoContender", package="openvino_genai", reads_gguf=True),
    "vllm": EngineEntry(f"{_HERE}.vllm_engine", "VllmContender", peer="vllm"),
    "llama.cpp": EngineEntry(f"{_HERE}.llama_cpp", "LlamaCppContender", peer="llama.cpp", reads_gguf=True),
}


def build_contender(engine: str, settings: ContenderSettings) -> Contender:
    """Import the contender's module and load its model; takes seconds."""
    entry = ENGINES[engine]
    return getattr(import_module(entry.module), entry.class_name)(settings)


__all__ = ["ENGINES", "Contender", "ContenderSettings", "EngineEntry", "build_contender"]

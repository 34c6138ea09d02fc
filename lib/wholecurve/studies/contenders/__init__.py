"""Engines that a study can measure, one file each. They run in worker processes, never in the study's own."""

from importlib import import_module

from wholecurve.studies.contenders.base import Contender, ContenderSettings

# engine name in a plan -> (module, class, package that it needs)
_ENGINES = {
    "wholecurve": ("wholecurve.studies.contenders.wholecurve_engine", "WholecurveContender", "torch"),
    "transformers": ("wholecurve.studies.contenders.transformers_static", "TransformersContender", "transformers"),
    "openvino": ("wholecurve.studies.contenders.openvino_genai", "OpenVinoContender", "openvino_genai"),
}


def required_package(engine: str) -> str:
    """Import name of the package that a contender cannot run without."""
    return _ENGINES[engine][2]


def build_contender(engine: str, settings: ContenderSettings) -> Contender:
    """Import the contender's module and load its model; takes seconds."""
    module, name, _ = _ENGINES[engine]
    return getattr(import_module(module), name)(settings)


__all__ = ["Contender", "ContenderSettings", "build_contender", "required_package"]

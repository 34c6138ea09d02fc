"""The engine: requests in, tokens out. Sequence, cache, scheduler, runner, sampling, engine."""

from wholecurve.engine.engine import Engine
from wholecurve.engine.outputs import EngineStats, StepOutput
from wholecurve.engine.sampling import SamplingParams

__all__ = ["Engine", "EngineStats", "SamplingParams", "StepOutput"]

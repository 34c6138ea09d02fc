"""The engine: requests in, tokens out. Sequence, cache, scheduler, runner, sampling, engine."""

from wholecurve.engine.engine import Engine, StepOutput
from wholecurve.engine.sampling import SamplingParams

__all__ = ["Engine", "SamplingParams", "StepOutput"]

"""Sampling: parameters, a request's state, and the tokens of a step."""

from wholecurve.engine.sampling.grammar import Grammars
from wholecurve.engine.sampling.grammar_spec import GrammarSpec
from wholecurve.engine.sampling.logprobs import TokenLogprobs
from wholecurve.engine.sampling.params import SamplingParams
from wholecurve.engine.sampling.request import RequestSampling
from wholecurve.engine.sampling.sampler import SampledStep, Sampler, SampleRow

__all__ = [
    "GrammarSpec",
    "Grammars",
    "RequestSampling",
    "SampleRow",
    "SampledStep",
    "Sampler",
    "SamplingParams",
    "TokenLogprobs",
]

"""Drawing with a sampler in tests: one request alone, or many at once."""

import torch

from wholecurve.engine.sampling import RequestSampling, Sampler, SampleRow, SamplingParams

END = 0


def request_of(vocab, prompt=(1, 2, 3), ends=(END,), grammars=None, **params):
    """The state of a request with these parameters."""
    return RequestSampling(SamplingParams(**params), list(prompt), vocab, ends, grammars)


def draw(logits, rows, argmax=None):
    """Tokens of rows, as a list, from a new sampler."""
    logits = torch.as_tensor(logits)
    return Sampler(logits.shape[1], "cpu").sample(logits, rows, argmax).tokens.tolist()


def draws(logits, count, sampler=None, **params):
    """`count` tokens, one after the other, of one request whose logits [V] never change."""
    logits = torch.as_tensor(logits)[None]
    request = request_of(logits.shape[1], **{"temperature": 1.0, "seed": 0, **params})
    sampler = sampler or Sampler(logits.shape[1], "cpu")
    tokens = []
    for index in range(count):
        tokens += sampler.sample(logits, [SampleRow(request, index)]).tokens.tolist()
        request.commit(tokens[-1:])
    return tokens


def many_draws(logits, count, **params):
    """`count` tokens of requests that differ in their seed alone, drawn at once."""
    logits = torch.as_tensor(logits)
    requests = [request_of(len(logits), **{"temperature": 1.0, **params, "seed": seed}) for seed in range(count)]
    return draw(logits.expand(count, -1), [SampleRow(request, 0) for request in requests])

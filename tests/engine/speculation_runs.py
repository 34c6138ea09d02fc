"""Proposers for tests, and runs of an engine with them that are held against runs without."""

from tiny_engine import VOCABULARY, prompt_of, run_with_arrivals, tiny_model, tokens_alone
from toy_hybrid import ScriptedProposer

from wholecurve.engine import Engine
from wholecurve.engine.speculation import DraftModelProposer, NgramProposer


class Oracle:
    """Drafts `count` tokens from what the request gives alone, the first `right` of them as they are.

    answers: request id -> tokens. The limits are not looked at, as a proposer that is not careful would do.
    """

    def __init__(self, answers, max_drafts, right=99, count=None):
        self.answers, self.max_drafts, self.right = answers, max_drafts, right
        self.count = max_drafts if count is None else count
        self.forgotten = []

    def propose(self, sequences, limits):
        drafts = []
        for sequence in sequences:
            following = self.answers[sequence.request_id][sequence.num_sampled :][: self.count]
            following += [0] * (self.count - len(following))
            drafts.append([t if i < self.right else (t + 1) % VOCABULARY for i, t in enumerate(following)])
        return drafts

    def forget(self, sequence):
        self.forgotten.append(sequence.request_id)


class Wild(Oracle):
    """Right drafts with one among them that is no token of the model."""

    def propose(self, sequences, limits):
        wild = [-1, VOCABULARY, 10**12]
        return [[*own[:1], wild[i % 3], *own[1:]] for i, own in enumerate(super().propose(sequences, limits))]


def draft_model(seed, max_drafts, **options):
    return DraftModelProposer(tiny_model(seed=seed), max_drafts, vocab_size=VOCABULARY, **options)


PROPOSERS = {
    "ngram": lambda answers: NgramProposer(4, 1, 3),
    "itself": lambda answers: draft_model(0, 3),
    "another": lambda answers: draft_model(1, 3, cache_tokens=64, block_size=4, max_batch_tokens=16),
    "greedy drafts": lambda answers: draft_model(0, 2, sampled=False),
    "wrong": lambda answers: Oracle(answers, 3, right=0),
    "half right": lambda answers: Oracle(answers, 4, right=2),
    "right": lambda answers: Oracle(answers, 5),
    "too many": lambda answers: Oracle(answers, 2, count=200),
    "wild": lambda answers: Wild(answers, 4),
    "scripted": lambda answers: ScriptedProposer({name: ((), tokens) for name, tokens in answers.items()}, 4),
}


def requests_of(lengths, params, arrivals=(0,)):
    """{id: (arrival step, prompt, params)} of requests with prompts of these lengths; the others go round."""
    return {
        f"r{i}": (arrivals[i % len(arrivals)], tuple(prompt_of(n, i)), params[i % len(params)])
        for i, n in enumerate(lengths)
    }


def answers_alone(requests):
    """{request id: tokens that it gives alone, without speculation}. requests as in `run_with_arrivals`."""
    model = tiny_model()
    return {name: tokens_alone(model, tuple(prompt), params) for name, (_, prompt, params) in requests.items()}


def run_with(proposer, requests, on_step=None, **options):
    """(engine, tokens, finish reasons) of requests run with a proposer; invariants are checked after every step."""
    engine = Engine(tiny_model(), speculation=proposer, check=True, **options)
    tokens, reasons = run_with_arrivals(engine, requests, on_step)
    return engine, tokens, reasons


def is_forgotten(proposer):
    """Whether a proposer keeps nothing of any request."""
    if isinstance(proposer, DraftModelProposer):
        pool = proposer.blocks.pool
        return not proposer._states and pool.num_free == pool.num_blocks
    return not getattr(proposer, "_indices", None)

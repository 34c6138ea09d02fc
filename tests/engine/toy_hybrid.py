"""A model in whole numbers whose next token depends on every entry of every cache group, and the same without a cache.

Each token's number r is a mix of the token, a weighted sum over the entries before it (full), one over the last of them
(window), the recurrent state, and the ids of the tokens before it (history). Entries are r itself, so a single wrong
slot, block, state or order anywhere in a context changes all that follows; whole numbers have no rounding to hide it.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from wholecurve.engine import SamplingParams

VOCABULARY = 29
EOS = 5
MASK = (1 << 64) - 1
GARBAGE = 0x5EED_0F_DEAD


@dataclass(frozen=True)
class ToySpec:
    """Cache group of one number per entry."""

    kind: str
    window: int | None = None

    def entry_bytes(self, dtype):
        return 8

    def allocate(self, num_blocks, block_size, dtype, device):
        return torch.full((num_blocks, block_size), GARBAGE, dtype=torch.int64)

    def copy_block(self, cache, source, target):
        cache[target] = cache[source]


@dataclass(frozen=True)
class ToyConfig:
    vocab_size: int = VOCABULARY
    max_position: int = 4096
    eos_token_ids: tuple = (EOS,)


FULL, LATENT, STATE = ToySpec("full"), ToySpec("latent"), ToySpec("state")


def window_of(tokens):
    return ToySpec("window", tokens)


def history_of(tokens):
    return ToySpec("history", tokens)


HYBRID = (FULL, window_of(7), STATE, history_of(2))


def mix(*numbers):
    """64 bits that depend on all numbers and their order."""
    result = 0x9E3779B97F4A7C15
    for number in numbers:
        result = ((result ^ number) * 0xBF58476D1CE4E5B9) & MASK
        result ^= result >> 29
    return result


WEIGHTS = np.array([mix(7, j) | 1 for j in range(4096)], dtype=np.uint64)


def read_out(entries, first):
    """Weighted sum of the entries of positions first, first + 1, … (uint64)."""
    return int((entries * WEIGHTS[first : first + len(entries)]).sum(dtype=np.uint64)) if len(entries) else 0


def logits_of(number):
    return [float((number >> 3) % (97 + 2 * token) - token % 3) for token in range(VOCABULARY)]


class ToyModel:
    """The model over paged caches, with the face of `models.llama.Llama`."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, specs=HYBRID):
        self.config, self.cache_specs = ToyConfig(), tuple(specs)
        self.num_steps = 0

    def __call__(self, batch, caches):
        self.num_steps += 1
        tokens, positions, cu_q = batch.token_ids.tolist(), batch.positions.tolist(), batch.cu_q.tolist()
        assert 0 <= min(tokens) <= max(tokens) < VOCABULARY
        assert len(tokens) == len(positions) == cu_q[-1] and batch.max_q == max(np.diff(cu_q))
        assert cu_q[: batch.num_decodes + 1] == [i * batch.decode_queries for i in range(batch.num_decodes + 1)]
        numbers = [0] * len(tokens)
        memory = [None if s.kind == "history" else c.numpy().view(np.uint64) for s, c in zip(self.cache_specs, caches)]
        for place, context in enumerate(batch.context_lens.tolist()):
            first, end = cu_q[place], cu_q[place + 1]
            assert positions[first:end] == list(range(context - (end - first), context))
            groups = [
                _Reader(spec, cache, group.block_table[place].tolist(), group.slots, positions[first])
                for spec, cache, group in zip(self.cache_specs, memory, batch.groups, strict=True)
            ]
            for row in range(first, end):
                number = mix(tokens[row], *(group.read(positions[row]) for group in groups))
                for group in groups:
                    group.write(row, tokens[row], number)
                numbers[row] = number
        return torch.tensor([logits_of(numbers[row]) for row in batch.logits_rows.tolist()])


class _Reader:
    """One group's memory as one sequence of a batch sees it."""

    def __init__(self, spec, cache, table, slots, start):
        self.spec, self.cache, self.table, self.slots = spec, cache, table, slots
        self.before = [token for token in table if token >= 0] if spec.kind == "history" else None
        if spec.kind == "history":
            assert len(table) == spec.window and len(self.before) == min(start, spec.window)
        if spec.kind == "state":
            self.state = int(cache[table[0], 0]) if start else 0

    def read(self, position):
        if self.spec.kind == "history":
            return mix(*self.before[-self.spec.window :])
        if self.spec.kind == "state":
            return self.state
        size, first = self.cache.shape[1], 0
        if self.spec.kind == "window":
            first = max(0, position - self.spec.window + 1)
        blocks = self.table[first // size : -(-position // size)]
        assert all(block >= 0 for block in blocks), "a block that is not there is needed"
        start = first // size * size
        entries = self.cache[blocks].ravel()[first - start : position - start]
        return read_out(entries, first)

    def write(self, row, token, number):
        if self.spec.kind == "history":
            self.before.append(token)
            return
        slot = int(self.slots[row])
        if self.spec.kind == "state":
            self.state = mix(self.state, number)
            if slot >= 0:
                assert slot in self.table, "a state is written to a slot of somebody else"
                self.cache[slot, 0] = self.state
            return
        size = self.cache.shape[1]
        self.cache[slot // size, slot % size] = number


@functools.cache
def plain_numbers(specs, token_ids):
    """The numbers of all tokens (a tuple), computed one after the other without any cache."""
    if not token_ids:
        return (), 0
    numbers, state = plain_numbers(specs, token_ids[:-1])
    position, entries, reads = len(token_ids) - 1, np.array(numbers, dtype=np.uint64), []
    for spec in specs:
        if spec.kind == "history":
            reads.append(mix(*token_ids[max(0, position - spec.window) : position]))
        elif spec.kind == "state":
            reads.append(state)
        else:
            first = max(0, position - spec.window + 1) if spec.kind == "window" else 0
            reads.append(read_out(entries[first:], first))
    number = mix(token_ids[-1], *reads)
    return (*numbers, number), mix(state, number)


@functools.cache
def plain_tokens(specs, prompt, params):
    """Greedy tokens of a prompt (a tuple), without engine and cache."""
    tokens = list(prompt)
    for length in range(1, len(prompt)):
        plain_numbers(specs, prompt[:length])  # keeps the recursion flat
    ends = {*(() if params.ignore_eos else (EOS,)), *params.stop_token_ids}
    while len(tokens) < len(prompt) + params.max_new_tokens:
        logits = logits_of(plain_numbers(specs, tuple(tokens))[0][-1])
        tokens.append(logits.index(max(logits)))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def toy_prompt(length, seed):
    generator = np.random.default_rng((seed, length))
    return generator.integers(0, VOCABULARY, length).tolist()


class ScriptedProposer:
    """Drafts what the plain run says, wrong from a place on that depends on request and step; right ones included.

    texts: request id -> (prompt, tokens of the plain run).
    """

    def __init__(self, texts, max_drafts, seed=0):
        self.texts, self.max_drafts, self.seed, self.forgotten = texts, max_drafts, seed, []
        self.step = 0

    def propose(self, sequences, limits):
        self.step += 1
        drafts = []
        for sequence, limit in zip(sequences, limits, strict=True):
            assert not sequence.drafts or sequence.num_computed, "stale drafts"
            _, tokens = self.texts[sequence.request_id]
            number = mix(self.seed, self.step, sequence.arrival)
            count = min(limit, number % (self.max_drafts + 1))
            right = (number >> 20) % (count + 1)
            following = tokens[sequence.num_sampled : sequence.num_sampled + count]
            following += [(number >> i) % VOCABULARY for i in range(count - len(following))]
            drafts.append([t if i < right else (t + 1) % VOCABULARY for i, t in enumerate(following)])
        return drafts

    def forget(self, sequence):
        self.forgotten.append(sequence.request_id)


def toy_greedy(max_new_tokens, **others):
    return SamplingParams(max_new_tokens=max_new_tokens, **{"ignore_eos": True, **others})

"""Synthetic acceptance: a step costs what real speculation costs, and how many drafts stay is set, not earned.

A mode for measurement. The target model verifies 1 + drafts rows and its logits are read as always; but which drafts
stay is decided by random numbers, so the text means nothing.
"""

import torch

from wholecurve.engine.sampling import SamplingParams
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.speculation.rates import Reading, draft_rates, expected_tokens
from wholecurve.errors import UserError
from wholecurve.kernels.verification import verification

_MASK = 2**64 - 1
_NEUTRAL = {  # what the verification of this mode does not look at must not be asked for
    "min_new_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "logprobs": None,
    "grammar": None,
}


class SyntheticProposer:
    """`max_drafts` drafts of which each stays with chance `acceptance`, by `reading` (see `rates.py`).

    Common random numbers: whether a draft stays depends on `seed`, the number of its request in order of arrival
    (`Sequence.arrival`) and its output index alone, so that contenders which get the same requests accept the same,
    whatever their batches, chunks or preemptions are. Drafts are tokens of the request's own prompt, none of
    `end_token_ids` (the model's) or the request's stop tokens among them; the token that is added after them is the
    target's own, so requests should run with `ignore_eos`.
    """

    def __init__(
        self,
        max_drafts: int,
        acceptance: float,
        reading: Reading = "conditional",
        seed: int = 0,
        end_token_ids: tuple[int, ...] = (),
    ):
        if max_drafts < 1:
            raise UserError(f"synthetic acceptance with {max_drafts} drafts; it must be at least 1")
        self.rates = draft_rates(max_drafts, acceptance, reading)
        self.expected_tokens = expected_tokens(max_drafts, acceptance, reading)
        self.max_drafts, self.acceptance, self.reading = max_drafts, acceptance, reading
        self.seed, self.end_token_ids = seed, frozenset(end_token_ids)

    def check_request(self, request_id: str, params: SamplingParams) -> None:
        """UserError for a request that asks for what this mode cannot give."""
        for field, neutral in _NEUTRAL.items():
            if getattr(params, field) != neutral and getattr(params, field) not in ((), {}):
                raise UserError(
                    f"request {request_id}: {field} has no meaning with synthetic acceptance; leave it at {neutral!r}"
                )

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[list[int]]:
        """As many drafts as each limit allows."""
        return [
            [self._draft(sequence, sequence.num_sampled + i) for i in range(min(limit, self.max_drafts))]
            for sequence, limit in zip(sequences, limits, strict=True)
        ]

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept per sequence."""

    def judge(self, sequences: list[Sequence], drafts: list[list[int]], logits: torch.Tensor) -> list[list[int]]:
        """Per sequence the drafts that stay and the target's token after them.

        logits: [R, V], for each sequence in order the rows of 1 + its drafts. Sequences that drafted equally many and
        stand together are verified in one call, over the logits where they lie.
        """
        tokens: list[list[int]] = []
        row = 0
        while len(tokens) < len(sequences):
            first, num_drafts = len(tokens), len(drafts[len(tokens)])
            last = first
            while last < len(sequences) and len(drafts[last]) == num_drafts:
                last += 1
            rows = (last - first) * (num_drafts + 1)
            part = logits[row : row + rows].unflatten(0, (last - first, num_drafts + 1))  # [B, K + 1, V]
            tokens += self._verify(sequences[first:last], drafts[first:last], part)
            row += rows
        return tokens

    def _verify(self, sequences, drafts, logits):
        def column(values, dtype):
            return torch.tensor(values, dtype=dtype, device=logits.device)

        filters, real = {}, torch.float32
        for name, off, dtype in (("top_k", 0, torch.int64), ("top_p", 1.0, real), ("min_p", 0.0, real)):
            values = [max(getattr(sequence.params, name), 0) for sequence in sequences]
            # a filter that no request has costs a search through the logits all the same
            filters[name] = column(values, dtype) if any(value != off for value in values) else None
        batch, num_drafts = len(sequences), len(drafts[0])
        given, accepted = verification(
            column(drafts, torch.int64).view(batch, num_drafts),
            logits,
            column([sequence.sampling.temperature for sequence in sequences], real),
            column([_signed(self._request_seed(sequence)) for sequence in sequences], torch.int64),
            column([sequence.num_sampled for sequence in sequences], torch.int64),
            **filters,
            acceptance_rates=column([self.rates[:num_drafts]], real).expand(batch, num_drafts),
        )
        return [row[: count + 1] for row, count in zip(given.tolist(), accepted.tolist(), strict=True)]

    def _request_seed(self, sequence: Sequence) -> int:
        return _mix(_mix(self.seed) + sequence.arrival)

    def _draft(self, sequence: Sequence, output_index: int) -> int:
        """A token of the prompt that ends nothing; the lowest such id where the first looks find none."""
        ends = self.end_token_ids.union(sequence.params.stop_token_ids)
        number = self._request_seed(sequence) + output_index
        for _ in range(8):
            number = _mix(number)
            token = sequence.prompt_ids[number % len(sequence.prompt_ids)]
            if token not in ends:
                return token
        return next(token for token in range(len(ends) + 1) if token not in ends)


def _mix(number: int) -> int:
    """splitmix64: 64 bits that look random, another for every number (Steele et al. 2014, section 4.2)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def _signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number

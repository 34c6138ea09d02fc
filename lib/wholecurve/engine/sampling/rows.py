"""Rows of a step by what has to be done with them, and their parameters as tensors."""

import torch
from torch import Tensor

from wholecurve.engine.sampling.request import RequestSampling


class RowGroup:
    """Rows that go through the kernel together, or that only need the largest logit (`is_plain`).

    positions: of the rows in the step; index: the same for indexing a tensor, a slice where they are neighbours.
    is_edited: logits of the rows are changed first. is_penalised: the kernel gets counts.
    """

    def __init__(self, positions: list[int], is_plain: bool, is_edited: bool, is_penalised: bool):
        self.positions = positions
        self.is_plain, self.is_edited, self.is_penalised = is_plain, is_edited, is_penalised
        self.index: slice | Tensor = slice(positions[0], positions[-1] + 1)
        self.grammar_places: list[int] = []

    def fill(self, rows: list[tuple[RequestSampling, bool]], device: torch.device) -> "RowGroup":
        """Build the tensors. rows: (request, whether end tokens are masked) of the group's rows."""
        if len(self.positions) < self.index.stop - self.index.start:
            self.index = torch.tensor(self.positions, device=device)
        if self.is_plain:
            return self
        requests = [request for request, _ in rows]
        params = [request.params for request in requests]

        def per_row(values: list, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.temperature = per_row([request.temperature for request in requests])
        self.seeds = per_row([request.seed for request in requests], torch.int64)
        self.options: dict[str, Tensor] = {}
        # a filter that no row has costs a search through the logits all the same
        if any(0 < p.top_k < request.vocab_size for p, request in zip(params, requests, strict=True)):
            self.options["top_k"] = per_row(
                [min(p.top_k, request.vocab_size) for p, request in zip(params, requests)], torch.int64
            )
        if any(p.top_p < 1 for p in params):
            self.options["top_p"] = per_row([p.top_p for p in params])
        if any(p.min_p > 0 for p in params):
            self.options["min_p"] = per_row([p.min_p for p in params])
        if self.is_penalised:
            self.options["penalties"] = per_row([request.penalties for request in requests])
        self.grammar_places = [place for place, request in enumerate(requests) if request.matcher is not None]
        self._fill_bias(rows, per_row)
        return self

    def _fill_bias(self, rows, per_row) -> None:
        places, tokens, biases = [], [], []
        for place, (request, masks_ends) in enumerate(rows):
            pairs = [*request.bias, *((token, -torch.inf) for token in request.end_token_ids if masks_ends)]
            places += [place] * len(pairs)
            tokens += [token for token, _ in pairs]
            biases += [bias for _, bias in pairs]
        self._bias_index = (per_row(places, torch.int64), per_row(tokens, torch.int64))
        self._biases = per_row(biases)

    def add_bias(self, logits: Tensor) -> None:
        """Add, in place, the bias of every row of logits [rows of the group, V], and −inf to its masked end tokens."""
        if len(self._biases):
            logits.index_put_(self._bias_index, self._biases, accumulate=True)


class Plan:
    """The groups of a step, which stay while the same requests follow one another. composition: per row its request
    and whether its end tokens are masked.

    logprob_positions: rows that want logprobs, each with how many alternatives.
    """

    def __init__(self, composition: list[tuple[RequestSampling, bool]], device: torch.device):
        kinds: dict[tuple[bool, bool, bool], list[int]] = {}
        for position, (request, masks_ends) in enumerate(composition):
            is_edited = bool(request.bias) or request.matcher is not None or masks_ends
            is_plain = request.is_greedy and not is_edited and not request.is_penalised
            kinds.setdefault((is_plain, is_edited, request.is_penalised), []).append(position)
        # a row's kind is its own, so nothing that the kernel does with it depends on the other rows
        self.groups = [
            RowGroup(positions, *kind).fill([composition[i] for i in positions], device)
            for kind, positions in kinds.items()
        ]
        self.logprob_positions = [
            (position, request.params.logprobs)
            for position, (request, _) in enumerate(composition)
            if request.params.logprobs is not None
        ]

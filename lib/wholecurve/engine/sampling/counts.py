"""How often each token stands in prompt and answer, for the rows of a step that have penalties."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wholecurve.engine.sampling.request import RequestSampling

if TYPE_CHECKING:
    from wholecurve.engine.sampling.sampler import SampleRow


class PenaltyCounts:
    """A table with a row per request of the last step: 2 · (times in the answer) + (1 if in the prompt), as
    `wholecurve.kernels.sampling.sampling` takes it. A step adds the tokens committed since; only a request that was
    not in the last step is counted anew.
    """

    def __init__(self, vocab_size: int, device: torch.device):
        self._vocab_size, self._device = vocab_size, device
        self._table = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._counted: dict[RequestSampling, int] = {}  # committed tokens in the table, in order of its rows

    def of_rows(self, rows: list["SampleRow"]) -> Tensor:
        """Counts [rows, V] int32 with the rows' drafts in them; to be read before the next call."""
        requests = list(dict.fromkeys(row.request for row in rows))
        if requests != list(self._counted):
            self._rebuild(requests)
        self._add_committed()
        if len(requests) == len(rows) and not any(len(row.drafts) for row in rows):
            return self._table
        place = {request: i for i, request in enumerate(requests)}
        counts = self._table[self._ids([place[row.request] for row in rows])]
        self._add(counts, [(i, token) for i, row in enumerate(rows) for token in row.drafts])
        return counts

    def _rebuild(self, requests: list[RequestSampling]) -> None:
        former = {request: i for i, request in enumerate(self._counted)}
        table = torch.empty(len(requests), self._vocab_size, dtype=torch.int32, device=self._device)
        for i, request in enumerate(requests):
            table[i] = self._table[former[request]] if request in former else self._counts_of(request)
        counted = {request: self._counted.get(request, len(request.output_ids)) for request in requests}
        self._table, self._counted = table, counted

    def _counts_of(self, request: RequestSampling) -> Tensor:
        counts = 2 * np.bincount(np.asarray(request.output_ids, dtype=np.int64), minlength=self._vocab_size)
        counts[np.unique(np.asarray(request.prompt_ids, dtype=np.int64))] += 1
        return torch.from_numpy(counts.astype(np.int32)).to(self._device)

    def _add_committed(self) -> None:
        added = []
        for i, (request, counted) in enumerate(self._counted.items()):
            added += [(i, token) for token in request.output_ids[counted:]]
            self._counted[request] = len(request.output_ids)
        self._add(self._table, added)

    def _add(self, counts: Tensor, places: list[tuple[int, int]]) -> None:
        """Count one more of each (row, token) in the answer."""
        if places:
            index = tuple(self._ids(list(ids)) for ids in zip(*places, strict=True))
            counts.index_put_(index, torch.full((len(places),), 2, dtype=torch.int32, device=self._device), True)

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

"""A smaller model of the same vocabulary that drafts token after token.

Leviathan et al. 2023, https://arxiv.org/abs/2211.17192; Chen et al. 2023, https://arxiv.org/abs/2302.01318.
"""

from dataclasses import dataclass, field

import torch

from wholecurve.engine.sampling import Sampler, SampleRow
from wholecurve.engine.sampling.sampler import greedy
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.speculation.draft_cache import Chunk, DraftBlocks, DraftState, chunk_batch
from wholecurve.errors import UserError


@dataclass
class Drafting:
    """A sequence that is being drafted for in this step."""

    place: int  # among the sequences that were asked for
    state: DraftState
    limit: int  # drafts that are wanted and fit
    drafts: list[int] = field(default_factory=list)


class DraftModelProposer:
    """Drafts with a model of its own over a cache of its own of `cache_tokens` tokens, in blocks of `block_size`.

    A step first catches up: the tokens that each sequence got since, `max_batch_tokens` of all sequences at most; whose
    context is not yet complete gets no drafts in this step. Then every forward pass gives one more draft to all
    sequences together. A sequence that does not fit into the cache gets no drafts.

    `sampled` drafts are drawn as the target draws: same parameters, and the same random number for the same output
    index. So a request with temperature is drafted for as well as a greedy one: where both models agree, the draft is
    the token. Without it drafts are the draft model's best tokens, whatever the parameters are.
    """

    def __init__(
        self,
        model,
        max_drafts: int,
        *,
        vocab_size: int,
        cache_tokens: int = 16384,
        block_size: int = 16,
        max_batch_tokens: int = 2048,
        sampled: bool = True,
    ):
        """model: as the engine's. vocab_size: the target's. UserError for a model or sizes that cannot draft."""
        if min(max_drafts, cache_tokens, block_size, max_batch_tokens) < 1:
            raise UserError(
                f"draft model with {max_drafts} drafts, cache_tokens {cache_tokens}, block_size {block_size}, "
                f"max_batch_tokens {max_batch_tokens}; all must be at least 1"
            )
        if model.config.vocab_size != vocab_size:
            raise UserError(
                f"the draft model's vocabulary has {model.config.vocab_size} tokens, the target's {vocab_size}; "
                "they must be the same"
            )
        if [spec.kind for spec in model.cache_specs] != ["full"]:
            kinds = ", ".join(spec.kind for spec in model.cache_specs)
            raise UserError(f"the draft model keeps caches of kind {kinds}; only one of kind full can be rolled back")
        self.model, self.max_drafts, self.sampled = model, max_drafts, sampled
        self.block_size, self.max_batch_tokens = block_size, max_batch_tokens
        self.blocks = DraftBlocks(-(-cache_tokens // block_size), block_size)
        (spec,) = model.cache_specs
        self.caches = [spec.allocate(self.blocks.pool.num_blocks, block_size, model.dtype, model.device)]
        self.sampler = Sampler(vocab_size, model.device)
        self._states: dict[str, DraftState] = {}

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[list[int]]:
        """Drafts of each sequence, at most its limit."""
        drafts: list[list[int]] = [[] for _ in sequences]
        drafting = self._catch_up(sequences, limits)
        while drafting:
            for one in drafting:
                drafts[one.place] = one.drafts
            drafting = [one for one in drafting if len(one.drafts) < one.limit]
            if drafting:
                self._draft_another(drafting)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence that has left the running ones. One that comes back is computed anew."""
        if state := self._states.pop(sequence.request_id, None):
            self.blocks.release(state)

    def _state(self, sequence: Sequence) -> DraftState:
        state = self._states.get(sequence.request_id)
        if state is not None and state.sequence is not sequence:
            self.forget(sequence)
            state = None
        if state is None:
            state = self._states[sequence.request_id] = DraftState(sequence)
        state.settle()
        return state

    def _catch_up(self, sequences: list[Sequence], limits: list[int]) -> list[Drafting]:
        """Compute tokens that are not in the cache yet. Sequences that are complete get their first draft."""
        budget, chunks = self.max_batch_tokens, []
        for place, (sequence, limit) in enumerate(zip(sequences, limits, strict=True)):
            state, tokens = self._state(sequence), sequence.token_ids
            length = len(tokens)
            # the last draft is never computed; the one before it stands at the model's last position at most
            limit = min(limit, self.max_drafts, self.model.config.max_position - length + 1)
            if limit < 1 or budget == 0:
                continue
            fit = self.blocks.reserve(state, length + limit - 1, least=length)
            if not fit:
                continue
            start = state.computed
            part = tokens[start : start + budget]
            budget -= len(part)
            chunks.append((Chunk(part, start, state.blocks), Drafting(place, state, fit - length + 1)))
        if not chunks:
            return []
        chunks.sort(key=lambda pair: not pair[0].is_decode)
        complete = [i for i, (chunk, one) in enumerate(chunks) if chunk.end == len(one.state.sequence.token_ids)]
        drafting = [chunks[i][1] for i in complete]
        self._run([chunk for chunk, _ in chunks], complete, drafting)
        for chunk, one in chunks:
            one.state.computed = chunk.end
        return drafting

    def _draft_another(self, drafting: list[Drafting]) -> None:
        """Compute the last draft of each sequence and append the one that follows it."""
        chunks = []
        for one in drafting:
            start = one.state.computed + len(one.state.guesses)
            chunks.append(Chunk(one.drafts[-1:], start, one.state.blocks))
            one.state.guesses.append(one.drafts[-1])
        self._run(chunks, list(range(len(chunks))), drafting)

    @torch.inference_mode()
    def _run(self, chunks: list[Chunk], logits_of: list[int], drafting: list[Drafting]) -> None:
        """Forward pass over the chunks; drafting[i] gets a token of the logits of chunk logits_of[i]."""
        batch = chunk_batch(chunks, logits_of, self.block_size, self.model.device)
        logits = self.model(batch, self.caches)
        if not drafting:
            return
        if self.sampled:
            rows = [
                SampleRow(one.state.sequence.sampling, one.state.sequence.num_sampled + len(one.drafts), one.drafts)
                for one in drafting
            ]
            tokens = self.sampler.sample(logits, rows, batch.argmax).tokens
        else:
            tokens = greedy(logits) if batch.argmax is None else batch.argmax
        for one, token in zip(drafting, tokens.tolist(), strict=True):
            if token >= 0:
                one.drafts.append(token)
            else:  # nothing could be chosen
                one.limit = len(one.drafts)

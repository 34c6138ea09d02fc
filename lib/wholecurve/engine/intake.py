"""From what a client hands in to a sequence, or one clear line that says why not."""

from array import array

from wholecurve.engine.sampling import Grammars, RequestSampling, SamplingParams
from wholecurve.engine.sequence import Sequence
from wholecurve.engine.text import TextStream
from wholecurve.errors import UserError


class Intake:
    """Checks requests against a model and a tokenizer (which may be None) and gives them what sampling needs."""

    def __init__(self, config, tokenizer=None):
        self.config, self.tokenizer = config, tokenizer
        self._grammars = Grammars(tokenizer, config.vocab_size, config.eos_token_ids) if tokenizer is not None else None

    def sequence(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, priority: int, cache_salt: str
    ) -> Sequence:
        """The sequence of a request. UserError, naming the request, for what this model can never run."""
        try:
            prompt_ids = self._checked(prompt_ids, params, priority, cache_salt)
            ends = self.config.eos_token_ids
            sampling = RequestSampling(params, prompt_ids, self.config.vocab_size, ends, self._grammars)
        except UserError as error:
            raise UserError(f"request {request_id}: {error}") from None
        sequence = Sequence(request_id, prompt_ids, params, priority, cache_salt=cache_salt, sampling=sampling)
        sequence.end_token_ids = frozenset([*self._ends(params), *params.stop_token_ids])
        if self.tokenizer is not None:
            options = dict(include_stop=params.include_stop, min_tokens=params.min_new_tokens)
            sequence.text = TextStream(self.tokenizer, params.stop, **options)
        sequence.is_simple = sequence.text is None and params.logprobs is None and not sampling.needs_history
        return sequence

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar of a request, so that `sequence` finds it compiled. UserError for one that is wrong."""
        if params.grammar is not None and self._grammars is not None:
            self._grammars.matcher(params.grammar)

    def _checked(self, prompt_ids, params: SamplingParams, priority, cache_salt) -> list[int]:
        config = self.config
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise UserError(f"priority is {priority!r}; it must be a whole number, lower ones go first")
        if not isinstance(cache_salt, str):
            raise UserError(f"cache_salt is {cache_salt!r}; it must be a string")
        try:
            prompt_ids = array("q", prompt_ids).tolist()
        except (TypeError, OverflowError):
            raise UserError("the prompt must be a list of token ids, whole numbers") from None
        if not prompt_ids:
            raise UserError("the prompt has no tokens")
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < config.vocab_size:
            raise UserError(f"a token id lies outside the vocabulary of {config.vocab_size}")
        if len(prompt_ids) + params.max_new_tokens > config.max_position:
            raise UserError(
                f"prompt {len(prompt_ids)} + max_new_tokens {params.max_new_tokens} exceed "
                f"the model's context of {config.max_position}"
            )
        if params.stop and self.tokenizer is None:
            raise UserError("stop is given; it needs an engine with a tokenizer")
        return prompt_ids

    def _ends(self, params: SamplingParams) -> tuple[int, ...]:
        """End tokens of the model that finish a request. A grammar lets one through only where the answer ends."""
        if params.grammar is not None:
            return self.config.eos_token_ids or (self.tokenizer.eos_token_id,)
        return () if params.ignore_eos else self.config.eos_token_ids

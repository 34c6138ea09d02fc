"""What an engine tells: the outputs of a step, and its counters."""

from dataclasses import dataclass

from wholecurve.engine.sampling import TokenLogprobs
from wholecurve.engine.sequence import Sequence


@dataclass(slots=True)
class StepOutput:
    """What one step brought for one request.

    finish_reason: None while it goes on, "stop", "length", or "abort" when there was no token to choose. text: new
    text since the last output, with a tokenizer. logprobs: of each token, where the request asked for them.
    num_cached: prompt tokens that the prefix cache served. stop_reason: the stop string or the stop token of the
    request that ended it, None for the model's own end token.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None
    text: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    num_cached: int = 0
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class EngineStats:
    """Requests and blocks now, and counts since the engine was made.

    blocks_cached: unreferenced blocks whose content can be taken up. Blocks are summed over the cache groups.
    prompt_tokens: of requests that were let in, each once. synthetic: the acceptance of drafts is set, not earned, and
    the text means nothing.
    """

    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    blocks_total: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    drafts_proposed: int
    drafts_accepted: int
    synthetic: bool = False


def named_end(sequence: Sequence) -> int | None:
    """The stop token of the request that has ended its sequence."""
    if sequence.finish_reason == "stop" and sequence.token_ids[-1] in sequence.params.stop_token_ids:
        return sequence.token_ids[-1]
    return None


def take_tokens(sequence: Sequence, tokens: list[int]) -> tuple[list[int], str | None, str | int | None]:
    """Add the tokens that a step gave to a sequence. Returns (tokens that stay, new text, stop reason).

    What follows a stop string or an end token is dropped; `sequence.finish_reason` is set where the sequence ends.
    """
    start = len(sequence.token_ids)
    for token in tokens:
        if token < 0:
            sequence.finish_reason = "abort"
        else:
            sequence.append(token)
        if sequence.finish_reason:
            break
    taken = sequence.token_ids[start:]
    stop_reason = named_end(sequence)
    text = None
    if sequence.text is not None:
        silent = sequence.finish_reason == "stop" and not sequence.params.include_stop
        delta = sequence.text.push(taken[:-1] if silent else taken)
        text = delta.text
        if delta.stopped is not None:
            sequence.finish_reason, stop_reason = "stop", delta.stopped
            del sequence.token_ids[start + delta.num_tokens :]
            taken = taken[: delta.num_tokens]
    sampling = sequence.sampling
    if sampling.needs_history and taken:
        sampling.commit(taken)
        if sampling.is_complete and sequence.finish_reason != "abort":
            sequence.finish_reason = "stop"
    if sequence.finish_reason and sequence.text is not None and not isinstance(stop_reason, str):
        rest = sequence.text.finish()
        text += rest.text
        if rest.stopped is not None:
            sequence.finish_reason, stop_reason = "stop", rest.stopped
    return taken, text, stop_reason

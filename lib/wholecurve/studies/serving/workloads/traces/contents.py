"""The prompt of every recorded turn: its own contents with a mark in front, or synthetic ones of the same shape."""

from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Prompt
from wholecurve.studies.serving.workloads.plan_parts import Form
from wholecurve.studies.serving.workloads.prompts import Part, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.traces.blocks import BlockStore
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

# As ids one block of most caches, so that what follows keeps its place in blocks; as text 14 characters and a blank.
MARK_TOKENS = 16


class Contents:
    """Writes the prompts of one recording. Turns are asked for in order: what a prompt shares depends on earlier ones.

    ``notes`` say how exact lengths are, and what was put in front of recorded contents.
    """

    def __init__(self, recording: Recording, form: Form, writer: Writer, seeds: Seeds, tokenizer: Any | None) -> None:
        self._form = form
        self._writer = writer
        self._seeds = seeds
        self._tokenizer = tokenizer
        self._parts: dict[str, list[Part]] = {}
        turns = [(session, turn) for session in recording.sessions for turn in session.turns]
        for session, turn in turns:
            if turn.prompt is not None and _form_of(turn.prompt) != form:
                raise UserError(
                    f"{session.where}: holds prompts as {_form_of(turn.prompt)}, and the workload has prompts: {form}"
                )
        hashed = next((session for session, turn in turns if turn.blocks), None)
        if hashed and recording.block_tokens is None:
            raise UserError(f"{hashed.where}: has hashes of blocks; workload.block_tokens must say how long a block is")
        self._blocks = BlockStore(writer, seeds, recording.block_tokens or 1)
        self._output_tokens = {turn.turn_id: turn.output_tokens for _, turn in turns}
        self._continued = {turn.continues for _, turn in turns}
        self.notes = []
        if any(turn.prompt is None for _, turn in turns):
            self.notes.append(f"contents are synthetic; lengths are {writer.lengths}")
        if any(turn.prompt is not None for _, turn in turns):
            self.notes.append(
                f"recorded prompts have a mark of at most {MARK_TOKENS} tokens in front, another one in every level "
                "and repeat"
            )

    def misfit(self, session: RecordedSession, limit_tokens: int | None) -> tuple[str, str] | None:
        """Why a session cannot be replayed, in general and in particular; None where it can."""
        lengths: dict[str, int] = {}
        for turn in session.turns:
            if turn.misfit:
                return turn.misfit, turn.misfit
            if turn.output_tokens < 1:
                return "no reply recorded", f"has no reply to turn {turn.turn_id}"
            if turn.prompt is None and not turn.prompt_tokens:
                return "no prompt recorded", f"has no prompt of turn {turn.turn_id}"
            if self._unknown_ids(turn):
                return "ids beyond the model's vocabulary", f"has ids beyond the model's vocabulary in {turn.turn_id}"
            if turn.blocks and (reason := self._blocks.misfit(turn)):
                return "hashes do not fit the length", f"{reason} (turn {turn.turn_id})"
            if turn.continues is not None and turn.continues not in lengths:
                return "continues no earlier turn", f"continues {turn.continues}, which is not before {turn.turn_id}"
            lengths[turn.turn_id] = tokens = self._prompt_tokens(turn, lengths)
            needed = tokens + turn.output_tokens
            if limit_tokens is not None and needed > limit_tokens:
                return (
                    f"longer than the model's window of {limit_tokens} tokens",
                    f"needs {needed} tokens in turn {turn.turn_id}, and the model's window holds {limit_tokens}",
                )
        return None

    def prompt(self, turn: RecordedTurn) -> tuple[Prompt, int]:
        """The prompt of a turn, and how many of its tokens an earlier prompt began with."""
        if turn.prompt is not None:
            return self._marked(turn.prompt), turn.shared_tokens
        if turn.continues is not None:
            before = self._parts[turn.continues]
            shared_tokens = sum(part.tokens for part in before)
            rng = self._seeds.generator("turn", turn.turn_id)
            reply = self._writer.reply(rng, self._output_tokens[turn.continues])
            parts = [*before, reply, Part("user", self._writer.content(rng, turn.prompt_tokens), turn.prompt_tokens)]
        else:
            shared_tokens = self._blocks.shared_tokens(turn)
            pieces = self._blocks.contents(turn)
            parts = [Part("user", self._writer.joined(pieces), turn.prompt_tokens)]
        if turn.turn_id in self._continued:
            self._parts[turn.turn_id] = parts
        return self._writer.prompt(parts), shared_tokens

    def _unknown_ids(self, turn: RecordedTurn) -> bool:
        if turn.prompt is None or _form_of(turn.prompt) != "ids":
            return False
        return max(turn.prompt) >= self._writer.vocab_size

    def _prompt_tokens(self, turn: RecordedTurn, lengths: dict[str, int]) -> int:
        """Tokens of a prompt with what the server adds; of recorded text as the tokenizer counts it, 0 without one."""
        if turn.continues is not None:
            return lengths[turn.continues] + self._output_tokens[turn.continues] + turn.prompt_tokens
        if turn.prompt is None:
            return turn.prompt_tokens + self._writer.allowance([Part("user", "", turn.prompt_tokens)])
        counts = self._counts(turn)
        return MARK_TOKENS + sum(counts) + self._writer.allowance([Part("user", "", tokens) for tokens in counts])

    def _counts(self, turn: RecordedTurn) -> list[int]:
        """Tokens of each message of a recorded prompt; of ids or a text as a whole."""
        if _form_of(turn.prompt) == "ids":
            return [len(turn.prompt)]
        texts = [turn.prompt] if isinstance(turn.prompt, str) else [str(one.get("content")) for one in turn.prompt]
        if turn.prompt_tokens is not None:
            return [turn.prompt_tokens] + [0] * (len(texts) - 1)
        if self._tokenizer is None:
            return [0] * len(texts)
        return [len(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    def _marked(self, prompt: Prompt) -> Prompt:
        if isinstance(prompt, str):
            return f"{self._mark()} {prompt}"
        if isinstance(prompt[0], int):
            return [*self._writer.content(self._seeds.generator("mark"), MARK_TOKENS), *prompt]
        first, content = prompt[0], prompt[0].get("content")
        if isinstance(content, list):
            marked = [{"type": "text", "text": self._mark()}, *content]
        else:
            marked = f"{self._mark()} {content}" if content else self._mark()
        return [{**first, "content": marked}, *prompt[1:]]

    def _mark(self) -> str:
        return f"[{self._seeds.number('mark'):032x}"[:13] + "]"


def _form_of(prompt: Prompt) -> Form:
    if isinstance(prompt, str):
        return "text"
    return "ids" if isinstance(prompt[0], int) else "messages"

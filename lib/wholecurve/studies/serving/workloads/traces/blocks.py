"""Prompts from hashes of blocks: equal hashes become equal tokens, and every length is kept."""

from dataclasses import dataclass, field

from wholecurve.studies.serving.workloads.prompts import Content, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.traces.schema import RecordedTurn


@dataclass
class _Node:
    """A block behind the blocks before it; ``tokens`` is the most of it that a prompt had."""

    tokens: int = 0
    next: dict[int | str, "_Node"] = field(default_factory=dict)


@dataclass
class BlockStore:
    """The contents of blocks, and which beginnings of prompts were there before."""

    writer: Writer
    seeds: Seeds
    block_tokens: int
    _contents: dict[tuple[str, int | str], Content] = field(default_factory=dict)
    _known: dict[str, _Node] = field(default_factory=dict)

    def misfit(self, turn: RecordedTurn) -> str | None:
        """What is wrong with the number of hashes; None where they cover the prompt, or all of its whole blocks."""
        whole, rest = divmod(turn.prompt_tokens, self.block_tokens)
        if len(turn.blocks) in (whole, whole + (rest > 0)):
            return None
        return (
            f"has {len(turn.blocks)} hashes for {turn.prompt_tokens} tokens, where blocks of {self.block_tokens} would "
            f"be {whole + (rest > 0)}"
        )

    def contents(self, turn: RecordedTurn) -> list[Content]:
        """The blocks of a prompt, and new tokens where they do not cover its end."""
        pieces = []
        left = turn.prompt_tokens
        for block in turn.blocks:
            tokens = min(left, self.block_tokens)
            content = self._content(turn.scope, block)
            pieces.append(content if tokens == self.block_tokens else self.writer.first(content, tokens))
            left -= tokens
        if left:
            pieces.append(self.writer.content(self.seeds.generator("tail", turn.turn_id), left))
        return pieces

    def shared_tokens(self, turn: RecordedTurn) -> int:
        """How many tokens of the prompt an earlier one began with; the prompt counts as earlier from now on."""
        node = self._known.setdefault(turn.scope, _Node())
        shared, left = 0, turn.prompt_tokens
        for block in turn.blocks:
            tokens = min(left, self.block_tokens)
            left -= tokens
            node = node.next.setdefault(block, _Node())
            # A block that was there in part ended its prompt, so nothing that follows it is known.
            shared += min(tokens, node.tokens)
            node.tokens = max(node.tokens, tokens)
        return shared

    def _content(self, scope: str, block: int | str) -> Content:
        key = (scope, block)
        if key not in self._contents:
            rng = self.seeds.generator("block", scope, type(block).__name__, block)
            self._contents[key] = self.writer.content(rng, self.block_tokens)
        return self._contents[key]

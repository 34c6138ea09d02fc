"""Sessions of an agent: a context that grows turn by turn, with tools, a user, and agents of its own."""

import hashlib
from dataclasses import dataclass, field

import numpy as np

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.amounts import draw_seconds, draw_tokens
from wholecurve.studies.serving.workloads.plan_parts import AgentsPlan, Tokens
from wholecurve.studies.serving.workloads.prepared import Prepared
from wholecurve.studies.serving.workloads.prompts import Part, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.tools import CODING_TOOLS


def agent_sessions(
    plan: AgentsPlan, seeds: Seeds, writer: Writer, count: int, limit_tokens: int | None = None
) -> Prepared:
    """``count`` sessions. None of their requests, reply included, is longer than ``limit_tokens``.

    A chain of turns ends where the next request would be; how many did is in the notes.
    """
    author = _Author(plan, seeds, writer, limit_tokens)
    sessions = [Session(f"s{index:05d}", tuple(author.session(index))) for index in range(count)]
    notes = [
        "the replies in later prompts are synthesised from the seed with the planned lengths; live ones are dropped"
    ]
    if author.ended_full:
        notes.append(
            f"{len(author.ended_full)} of {author.chains} chains of turns ended before their planned last turn: "
            f"the next request would not have fitted into {limit_tokens} tokens"
        )
    return Prepared(sessions, notes)


def coding_or_own(plan: AgentsPlan) -> list[dict]:
    """The tool definitions that a plan means; none where it has no tools."""
    return CODING_TOOLS if plan.tools == "coding" else list(plan.tools or ())


@dataclass
class _Author:
    """Writes the sessions of one point. A chain is the turns of one agent, each continuing the one before."""

    plan: AgentsPlan
    seeds: Seeds
    writer: Writer
    limit_tokens: int | None
    chains: int = 0
    ended_full: list[str] = field(default_factory=list)

    def __post_init__(self):
        tokens = self.plan.system_tokens
        self._system = [Part("system", self.writer.content(self.seeds.generator("system"), tokens), tokens)]
        self._system = self._system if tokens else []
        self._tools = coding_or_own(self.plan)
        self._extra = {"tools": self._tools, "tool_choice": self.plan.tool_choice} if self._tools else {}

    def session(self, index: int) -> list[Turn]:
        """All turns of one session, every turn after those that it waits for."""
        turns: list[Turn] = []
        rng = self.seeds.generator("session", index)
        count = draw_tokens(self.plan.turns, rng)
        self._chain(turns, f"s{index:05d}", rng, count, self.plan.first_prompt_tokens)
        return turns

    def _chain(
        self,
        turns: list[Turn],
        name: str,
        rng: np.random.Generator,
        count: int,
        first_tokens: Tokens,
        after: tuple[str, ...] = (),
        delay_s: float = 0.0,
    ) -> str:
        """Append the turns of one agent, and of those that it sets off, to ``turns``; returns the last one's name."""
        own = not after
        self.chains += 1
        # The system prompt was sent before, unless this is the first turn of all.
        known_tokens = 0 if name == "s00000" else self.plan.system_tokens
        parts = [*self._system, self._part("user", rng, first_tokens)]
        last = ""
        for number in range(count):
            reply_tokens = draw_tokens(self.plan.reply_tokens, rng)
            tokens = sum(part.tokens for part in parts)
            if not self._fits(name, parts, tokens + reply_tokens, is_first=number == 0):
                break
            last = f"{name}.t{number:02d}"
            prompt = self.writer.prompt(parts)
            turns.append(Turn(last, prompt, reply_tokens, after, delay_s, self._extra, known_tokens))
            known_tokens = tokens
            if number + 1 < count:
                after, delay_s = self._answer(turns, last, rng, parts, reply_tokens, may_delegate=own)
        return last

    def _answer(
        self,
        turns: list[Turn],
        turn_id: str,
        rng: np.random.Generator,
        parts: list[Part],
        reply_tokens: int,
        may_delegate: bool,
    ) -> tuple[tuple[str, ...], float]:
        """Append a turn's reply and what follows it to ``parts``; returns what the next turn waits for."""
        delegates = self.plan.subagents if may_delegate else None
        if delegates and rng.random() < delegates.probability:
            ends = []
            for subagent in range(draw_tokens(delegates.fan_out, rng)):
                # Draws of its own: a sub-agent that ends early, its context full, must not move those of its caller.
                name, own_rng = f"{turn_id}.a{subagent:02d}", self.seeds.generator(f"{turn_id}.a{subagent:02d}")
                subagent_turns, wait_s = draw_tokens(delegates.turns, own_rng), draw_seconds(self.plan.tool_s, own_rng)
                first = delegates.first_prompt_tokens
                ends.append(self._chain(turns, name, own_rng, subagent_turns, first, (turn_id,), wait_s))
            self._tool_results(turn_id, rng, parts, reply_tokens, len(ends))
            return tuple(ends), 0.0
        if rng.random() < self.plan.tool_share:
            self._tool_results(turn_id, rng, parts, reply_tokens, 1)
            return (turn_id,), draw_seconds(self.plan.tool_s, rng)
        parts.append(self.writer.reply(rng, reply_tokens))
        parts.append(self._part("user", rng, self.plan.user_tokens))
        return (turn_id,), draw_seconds(self.plan.think_s, rng)

    def _tool_results(
        self, turn_id: str, rng: np.random.Generator, parts: list[Part], reply_tokens: int, results: int
    ) -> None:
        """The reply with its calls, and a result for each; without definitions, results come as the user's words."""
        calls = [
            (_call_id(turn_id, number), self._tools[int(rng.integers(len(self._tools)))])
            for number in range(results if self._tools else 0)
        ]
        parts.append(self.writer.reply(rng, reply_tokens, calls))
        for number in range(results):
            tokens = draw_tokens(self.plan.tool_result_tokens, rng)
            content = self.writer.content(rng, tokens)
            if calls:
                parts.append(Part("tool", content, tokens, answers=calls[number][0]))
            else:
                parts.append(Part("user", content, tokens))

    def _part(self, role: str, rng: np.random.Generator, amount: Tokens) -> Part:
        tokens = draw_tokens(amount, rng)
        return Part(role, self.writer.content(rng, tokens), tokens)

    def _fits(self, name: str, parts: list[Part], tokens: int, is_first: bool) -> bool:
        if self.limit_tokens is None or tokens + self.writer.allowance(parts) <= self.limit_tokens:
            return True
        if is_first:
            needed = tokens + self.writer.allowance(parts)
            raise UserError(
                f"workload, session {name}: its first request needs {needed} tokens, the model's window holds "
                f"{self.limit_tokens}; smaller system_tokens, first_prompt_tokens or reply_tokens are needed"
            )
        self.ended_full.append(name)
        return False


def _call_id(turn_id: str, number: int) -> str:
    """Nine letters and digits: all that the strictest chat templates, those of Mistral's models, take for an id."""
    return hashlib.sha256(f"{turn_id}/{number}".encode()).hexdigest()[:9]

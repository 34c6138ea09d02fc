"""From a plan's workload to the sessions of one point."""

from typing import Any

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.agent_sessions import agent_sessions, coding_or_own
from wholecurve.studies.serving.workloads.documents import document_sessions
from wholecurve.studies.serving.workloads.lengths import length_sessions
from wholecurve.studies.serving.workloads.plan_parts import (
    AgentsPlan,
    DocumentsPlan,
    LengthsPlan,
    TracePlan,
    WorkloadPlan,
)
from wholecurve.studies.serving.workloads.prepared import Prepared
from wholecurve.studies.serving.workloads.prompts import IdsWriter, MessagesWriter, Part, TextWriter, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.traces.replay import trace_sessions
from wholecurve.studies.serving.workloads.vocabulary import Vocabulary
from wholecurve.studies.serving.workloads.words import words_of


def build(workload: WorkloadPlan, **point: Any) -> list[Session]:
    """The sessions that ``prepare`` makes of the same arguments."""
    return prepare(workload, **point).sessions


def prepare(
    workload: WorkloadPlan,
    *,
    seed: int,
    load: float,
    repeat: int,
    count: int | None = None,
    vocab_size: int | None = None,
    tokenizer: Any | None = None,
    limit_tokens: int | None = None,
    purpose: str = "measured",
) -> Prepared:
    """The sessions of one point, in the order in which they start.

    They follow from ``seed``, ``load`` (concurrency or rate), ``repeat`` and the workload alone: every contender gets
    the same ones, and no two levels, repeats or purposes share a prompt, but for what the workload shares on purpose.
    ``count`` sessions are made; of a trace's, so many are taken, and needed (None: all that there are).

    ``vocab_size`` is the model's, ``tokenizer`` one of transformers: at least one of them for token ids; a tokenizer
    for text whose length is exact. ``limit_tokens`` is the model's window: UserError where a planned request, prompt
    and output, might not fit. Agents' sessions end there instead, and misfits of a trace go as its plan says.
    """
    seeds = Seeds(seed, workload.kind, load, repeat, purpose)
    writer = _writer(workload, vocab_size, tokenizer)
    if isinstance(workload, TracePlan):
        return _check(trace_sessions(workload, seeds, writer, tokenizer, count, limit_tokens))
    if count is None or count < 1:
        raise UserError(f"workload: {count} sessions were asked for; {workload.kind} needs a count of at least 1")
    notes = [f"lengths are {writer.lengths}"]
    if isinstance(workload, AgentsPlan):
        made = agent_sessions(workload, seeds, writer, count, limit_tokens)
        return _check(Prepared(made.sessions, notes + made.notes))
    _check_longest(workload, writer, limit_tokens)
    if isinstance(workload, DocumentsPlan):
        return _check(Prepared(document_sessions(workload, seeds, writer, count), notes))
    return _check(Prepared(length_sessions(workload, seeds, writer, count), notes))


def warm_up(
    workload: WorkloadPlan, *, count: int, prompt_tokens: int, output_tokens: int, seed: int, load: float, repeat: int,
    vocab_size: int | None = None, tokenizer: Any | None = None,
) -> list[Session]:  # fmt: skip
    """``count`` single requests in the workload's own form, to be discarded; no cache finds their prompts later."""
    seeds = Seeds(seed, workload.kind, load, repeat, "warm-up")
    writer = _writer(workload, vocab_size, tokenizer)
    sessions = []
    for index in range(count):
        content = writer.content(seeds.generator("request", index), prompt_tokens)
        prompt = writer.prompt([Part("user", content, prompt_tokens)])
        sessions.append(Session(f"w{index:05d}", (Turn(f"w{index:05d}", prompt, output_tokens),)))
    return sessions


def _writer(workload: WorkloadPlan, vocab_size: int | None, tokenizer: Any | None) -> Writer:
    if workload.prompts == "ids":
        return IdsWriter(Vocabulary.of(vocab_size, tokenizer))
    if workload.prompts == "text":
        return TextWriter(words_of(tokenizer))
    return MessagesWriter(words_of(tokenizer), coding_or_own(workload) if isinstance(workload, AgentsPlan) else ())


def _check_longest(workload: LengthsPlan | DocumentsPlan, writer: Writer, limit_tokens: int | None) -> None:
    if limit_tokens is None:
        return
    longest = workload.longest_tokens
    needed = longest + writer.allowance([Part("system", "", 0), Part("user", "", longest)])
    if needed > limit_tokens:
        raise UserError(
            f"workload: a request may have up to {needed} tokens, prompt and output together, and the model's window "
            f"holds {limit_tokens}; shorter lengths are needed"
        )


def _check(made: Prepared) -> Prepared:
    for session in made.sessions:
        session.check()
    return made

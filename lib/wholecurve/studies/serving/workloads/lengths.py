"""Single requests of drawn lengths, with or without a shared beginning."""

from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.amounts import draw_tokens
from wholecurve.studies.serving.workloads.plan_parts import LengthsPlan
from wholecurve.studies.serving.workloads.prompts import Part, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds


def length_sessions(plan: LengthsPlan, seeds: Seeds, writer: Writer, count: int) -> list[Session]:
    """``count`` sessions of one turn each. The first ones stay the same when more are asked for."""
    prefix_tokens = plan.shared_prefix_tokens
    prefixes = [
        Part("system", writer.content(seeds.generator("prefix", group), prefix_tokens), prefix_tokens)
        for group in range(plan.prefix_groups if prefix_tokens else 0)
    ]
    sessions = []
    for index in range(count):
        rng = seeds.generator("request", index)
        tokens = draw_tokens(plan.prompt_tokens, rng)
        output_tokens = draw_tokens(plan.output_tokens, rng)
        own_tokens = tokens - prefix_tokens
        parts = [Part("user", writer.content(rng, own_tokens), own_tokens)]
        if prefixes:
            parts.insert(0, prefixes[index % plan.prefix_groups])
        shared = prefix_tokens if index >= plan.prefix_groups else 0
        turn = Turn(f"r{index:05d}", writer.prompt(parts), output_tokens, shared_tokens=shared)
        sessions.append(Session(f"s{index:05d}", (turn,)))
    return sessions

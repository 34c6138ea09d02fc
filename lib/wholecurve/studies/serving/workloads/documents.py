"""Questions about long documents, one document after another in each session."""

from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.amounts import draw_tokens
from wholecurve.studies.serving.workloads.plan_parts import DocumentsPlan
from wholecurve.studies.serving.workloads.prompts import Part, Writer
from wholecurve.studies.serving.workloads.seeds import Seeds


def document_sessions(plan: DocumentsPlan, seeds: Seeds, writer: Writer, count: int) -> list[Session]:
    """``count`` documents, a session each; every question waits for the answer to the one before it."""
    sessions = []
    for index in range(count):
        rng = seeds.generator("document", index)
        if plan.document_sizes:
            tokens = plan.document_sizes[index % len(plan.document_sizes)]
        else:
            tokens = draw_tokens(plan.document_tokens, rng)
        document = Part("system", writer.content(rng, tokens), tokens)
        turns: list[Turn] = []
        for number in range(plan.questions_per_document):
            length = draw_tokens(plan.question_tokens, rng)
            question = Part("user", writer.content(rng, length), length)
            turns.append(
                Turn(
                    f"d{index:05d}.q{number:02d}",
                    writer.prompt([document, question]),
                    draw_tokens(plan.answer_tokens, rng),
                    after=(turns[-1].turn_id,) if turns else (),
                    shared_tokens=tokens if turns else 0,
                )
            )
        sessions.append(Session(f"d{index:05d}", tuple(turns)))
    return sessions

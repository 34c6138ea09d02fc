"""Do all contenders run the same model? Greedy answers, scored token by token by a float32 reference.

Two correct engines part after a near tie, so equal texts cannot be asked for. Instead every token that a contender
chose is judged in its own context: how far, in logits, is it below the token that the reference would have chosen?
"""

from collections.abc import Callable
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.studies.plan_parts import AgreementPlan
from wholecurve.studies.request import Request

PROMPTS = [
    "What is the capital of France?",
    "Explain in one sentence why the sky is blue.",
    "Write a short poem about a river.",
    "List three uses of a hammer.",
    "Translate to German: The train leaves at noon.",
    "How many days are in a leap year?",
    "def fibonacci(n):",
    "Summarise the plot of Romeo and Juliet in two sentences.",
]


def agreement_requests(hf_folder: Path, output_tokens: int) -> list[Request]:
    """The questions through the model's chat template; without a tokenizer, fixed runs of token ids."""
    from wholecurve.files import read_json
    from wholecurve.models.tokenizer import chat_prompt_ids, load_tokenizer

    if (hf_folder / "tokenizer.json").exists():
        tokenizer = load_tokenizer(hf_folder)
        prompts = [chat_prompt_ids(tokenizer, text) for text in PROMPTS]
    else:
        vocab_size = read_json(hf_folder / "config.json")["vocab_size"]
        prompts = [[(17 * i + 5 * j) % vocab_size for j in range(8 + 3 * i)] for i in range(len(PROMPTS))]
    return [Request(f"a{i}", ids, output_tokens) for i, ids in enumerate(prompts)]


def score_greedy(model: str, sequences: list[dict]) -> list[list[float]]:
    """For each {"prompt_ids", "tokens"}: how far each token lies below the float32 reference's best, in logits."""
    import torch

    from wholecurve.engine.load import DTYPES
    from wholecurve.engine.scoring import continuation_logits
    from wholecurve.models.folder import read_folder
    from wholecurve.models.llama import build_llama

    reference = build_llama(*read_folder(Path(model)), DTYPES["float32"], "cpu")
    scores = []
    for sequence in sequences:
        logits = continuation_logits(reference, sequence["prompt_ids"], sequence["tokens"])
        chosen = logits.gather(1, torch.tensor(sequence["tokens"])[:, None])[:, 0]
        scores.append((logits.max(dim=1).values - chosen).tolist())
    return scores


def summarise(scores: list[list[float]]) -> dict:
    """Share of tokens that are the reference's best, and the largest and mean distance from it in logits."""
    gaps = [gap for sequence in scores for gap in sequence]
    return {
        "tokens": len(gaps),
        "best_share": sum(gap == 0 for gap in gaps) / len(gaps),
        "max_gap": max(gaps),
        "mean_gap": sum(gaps) / len(gaps),
    }


def judged(
    generate: Callable[[list[Request]], dict[str, list[int]]],
    score: Callable[[list[dict]], list[list[float]]],
    hf_folder: Path,
    tokens: int,
) -> dict:
    """The summary of one contender: `generate` gives its greedy tokens by request, `score` the reference's view."""
    requests = agreement_requests(hf_folder, tokens)
    answers = generate(requests)
    return summarise(score([{"prompt_ids": r.prompt_ids, "tokens": answers[r.request_id]} for r in requests]))


def disagreement(summary: dict, plan: AgreementPlan) -> str | None:
    """What is wrong with a contender's choices, in one sentence; None where they are the reference model's."""
    if summary["max_gap"] <= plan.max_gap and summary["best_share"] >= plan.min_best_share:
        return None
    return (
        f"does not agree with the float32 reference: {summary['best_share']:.0%} of "
        f"{summary['tokens']} greedy tokens are its best (at least {plan.min_best_share:.0%} needed), "
        f"the worst lies {summary['max_gap']:.2f} logits below it (at most {plan.max_gap:g} allowed)"
    )


def require_agreement(name: str, summary: dict, plan: AgreementPlan) -> None:
    """UserError when a contender's choices are not those of the reference model."""
    if (reason := disagreement(summary, plan)) is not None:
        raise UserError(f"contender {name} {reason}; nothing was timed")

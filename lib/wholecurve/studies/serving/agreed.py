"""Do all servers run the same model? Their greedy answers, judged by the float32 reference before anything is timed."""

from collections.abc import Callable

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.agreement import agreement_requests, disagreement, summarise
from wholecurve.studies.plan_parts import AgreementPlan
from wholecurve.studies.serving.answers import HOW, greedy_answers
from wholecurve.studies.serving.bench import Bench
from wholecurve.studies.serving.live import LiveServer


def check_agreement(
    bench: Bench, run: RunFolder, lives: dict[str, LiveServer], says: Callable[[str], None] = lambda text: None
) -> None:
    """Judge each contender once per study and keep what was found in `agreement.json`.

    Where a server or a model cannot be asked, the record says why and the study goes on. UserError where the answers
    are not the reference's.
    """
    known = run.read("agreement") if run.has("agreement") else {}
    new = [name for name in lives if name not in known]
    if not new:
        return
    says("greedy agreement")
    for name, found in judged_servers(bench, {name: lives[name] for name in new}, bench.plan.agreement).items():
        require(name, found, bench.plan.agreement)
        known[name] = found
    run.write("agreement", known)


def judged_servers(bench: Bench, lives: dict[str, LiveServer], plan: AgreementPlan | None) -> dict[str, dict]:
    """What the reference says of each; `checked` is False, with a reason, where it could not be asked."""
    why = _impossible(bench, plan)
    if why is not None:
        return {name: {"checked": False, "why": why} for name in lives}
    from wholecurve.studies.session import Reference

    requests = agreement_requests(bench.files.hf_folder(), plan.tokens)
    found = {}
    with Reference(bench) as reference:
        for name, live in lives.items():
            try:
                with live.awake():
                    answers = greedy_answers(live.endpoint(), bench.tokenizer, requests)
            except UserError as error:
                found[name] = {"checked": False, "why": str(error)}
                continue
            sequences = [{"prompt_ids": r.prompt_ids, "tokens": answers[r.request_id]} for r in requests]
            found[name] = {"checked": True, "how": HOW, **summarise(reference.score(sequences))}
    return found


def require(name: str, found: dict, plan: AgreementPlan | None) -> None:
    """UserError where the answers were judged and are not those of the reference model."""
    if found["checked"] and (reason := disagreement(found, plan)) is not None:
        raise UserError(f"contender {name} {reason}; nothing was timed")


def _impossible(bench: Bench, plan: AgreementPlan | None) -> str | None:
    """Why no server can be judged; None where it is possible."""
    if plan is None:
        return "the plan does not ask for it"
    if bench.files is None:
        return "the plan names no model"
    if bench.tokenizer is None:
        return "the model has no tokenizer"
    return None

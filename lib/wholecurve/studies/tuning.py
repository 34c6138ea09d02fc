"""The settings that each contender runs with: candidates of the plan, measured first, the best of each taken.

Kept in the run as `tuning.json`, a candidate at a time, so that a killed study goes on where it stopped.
"""

import math
from collections.abc import Callable

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.agreement import disagreement, judged
from wholecurve.studies.plan import Plan
from wholecurve.studies.plan_parts import ContenderPlan
from wholecurve.studies.session import Bench, Reference

_AGREEMENT_TOKENS = 8  # per question; the race asks its winners for more
CRITERION = "highest geometric mean of throughput over the load levels and rounds"
# Repeats of the race count from 1; tuning has prompts of its own.
_FIRST_REPEAT = 1001
_THROUGHPUT = {"batch": "output_throughput_tok_per_s", "prefill": "input_throughput_tok_per_s"}


def tune(bench: Bench, run: RunFolder, progress: Callable[[str], None] = lambda text: None) -> dict[str, dict]:
    """The settings of every contender of the plan: the winners where there is tuning, else its own.

    A candidate that the engine refuses, or whose greedy tokens are not the reference's, is kept with its reason and
    cannot win. UserError when none of a contender's candidates is left.
    """
    plan = bench.plan
    own = {contender.name: contender.settings for contender in plan.contenders}
    if plan.tuning is None:
        return own
    document = run.read("tuning") if run.has("tuning") else {"criterion": CRITERION, "contenders": {}}
    with Reference(bench) as reference:
        for contender in plan.contenders:
            if contender.name not in plan.tuning.candidates:
                continue
            found = document["contenders"].setdefault(contender.name, {"candidates": [], "winner": None})
            wanted = candidates_of(plan, contender)
            for number, settings in enumerate(wanted[len(found["candidates"]) :], start=1 + len(found["candidates"])):
                progress(f"tuning {contender.name}, settings {number} of {len(wanted)}")
                found["candidates"].append(_try(bench, reference, contender, settings))
                run.write("tuning", document)
            if found["winner"] is None:
                found["winner"] = winner(contender.name, found["candidates"])
                run.write("tuning", document)
            own[contender.name] = found["candidates"][found["winner"]]["settings"]
    # A control is the same contender once more, so it runs as the one that it repeats.
    return {c.name: own[c.control_of] if c.control_of is not None else own[c.name] for c in plan.contenders}


def candidates_of(plan: Plan, contender: ContenderPlan) -> list[dict]:
    """All settings that a contender tries: its own first, then each candidate laid over them."""
    return [contender.settings, *({**contender.settings, **c} for c in plan.tuning.candidates[contender.name])]


def _try(bench: Bench, reference: Reference, contender: ContenderPlan, settings: dict) -> dict:
    """Measure one candidate in fresh processes, one for each round; its answers are judged first."""
    tuning = bench.plan.tuning
    levels = [("batch", c) for c in tuning.concurrency] + [("prefill", n) for n in tuning.step_tokens]
    points = []
    try:
        for number in range(tuning.rounds):
            with bench.start(contender, settings) as session:
                if number == 0:
                    summary = judged(session.generate, reference.score, reference.hf_folder, _AGREEMENT_TOKENS)
                    if (reason := disagreement(summary, bench.plan.agreement)) is not None:
                        raise UserError(f"contender {contender.name} {reason}")
                for workload, load in levels:
                    row, _ = session.measure(workload, load, _FIRST_REPEAT + number)
                    throughput = row[_THROUGHPUT[workload]]
                    points.append({"workload": workload, "load": load, "round": number + 1, "tok_per_s": throughput})
    except UserError as error:
        return {"settings": settings, "points": points, "score_tok_per_s": None, "refused": str(error)}
    return {"settings": settings, "points": points, "score_tok_per_s": score(points), "refused": None}


def score(points: list[dict]) -> float:
    """Geometric mean of `tok_per_s`, every level and round with the same weight."""
    return math.exp(sum(math.log(point["tok_per_s"]) for point in points) / len(points))


def winner(name: str, candidates: list[dict]) -> int:
    """Index of the candidate with the highest score; the earlier one where two are equal."""
    running = [i for i, candidate in enumerate(candidates) if candidate["score_tok_per_s"] is not None]
    if not running:
        raise UserError(f"contender {name}: none of its {len(candidates)} settings runs: {candidates[0]['refused']}")
    return max(running, key=lambda i: (candidates[i]["score_tok_per_s"], -i))

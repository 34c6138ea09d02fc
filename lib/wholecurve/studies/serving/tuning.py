"""Which settings take part in the race: a grid of them, each measured first, the best few chosen.

Kept in the run as `tuning.json`, a candidate at a time, so that a killed study goes on where it stopped.
"""

import itertools
import math
from collections.abc import Callable

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.plan_parts import GridPlan, ServingContender
from wholecurve.studies.serving.servers.settings import portable

BY_THROUGHPUT = "highest geometric mean of output throughput over the tuning levels; a candidate with failures is out"
BY_OBJECTIVES = (
    "highest mean share of requests within the objectives over the tuning levels, then the highest geometric mean of "
    "output throughput; a candidate with failures is out"
)

# Measures one candidate with these settings in a fresh server; returns its points.
Measure = Callable[[ServingContender, dict], list[dict]]


def tune(
    plan: ServingPlan, run: RunFolder, measure: Measure, progress: Callable[[str], None] = lambda text: None
) -> list[ServingContender]:
    """The contenders of the race, in the plan's order: finalists where there is tuning, the others as they are.

    A candidate whose server does not start, does not agree, or fails requests is kept with its reason and cannot be
    chosen. UserError when none of a contender's candidates is left.
    """
    if plan.tuning is None:
        return list(plan.contenders)
    by_objectives = plan.slo is not None
    criterion = BY_OBJECTIVES if by_objectives else BY_THROUGHPUT
    document = run.read("tuning") if run.has("tuning") else {"criterion": criterion, "contenders": {}}
    for contender in plan.contenders:
        if (grid := plan.tuning.contenders.get(contender.name)) is None:
            continue
        found = document["contenders"].setdefault(
            contender.name, {"levels": plan.tuning.levels, "candidates": [], "winner": None, "finalists": []}
        )
        wanted = candidates_of(contender, grid)
        for number, settings in enumerate(wanted[len(found["candidates"]) :], start=1 + len(found["candidates"])):
            progress(f"tuning {contender.name}, settings {number} of {len(wanted)}")
            found["candidates"].append(_tried(measure, contender, settings))
            run.write("tuning", document)
        if not found["finalists"]:
            found["finalists"] = finalists(contender.name, found["candidates"], grid.finalists, by_objectives)
            found["winner"] = found["finalists"][0]
            run.write("tuning", document)
    return contenders_of_the_race(plan, document["contenders"])


def candidates_of(contender: ServingContender, grid: GridPlan) -> list[dict]:
    """All settings that a contender tries: its own first, then every combination of the grid laid over them."""
    tried = [contender.settings]
    for values in itertools.product(*grid.grid.values()):
        settings = {**contender.settings, **dict(zip(grid.grid, values))}
        if settings not in tried:
            tried.append(settings)
    return tried


def _tried(measure: Measure, contender: ServingContender, settings: dict) -> dict:
    blank = {"settings": settings, "points": [], "score_tok_per_s": None, "slo_share": None}
    try:
        points = measure(contender, settings)
    except UserError as error:
        return {**blank, "refused": portable(str(error))}
    blank["points"] = points
    for point in points:
        if point["n_failed"] or not point["output_throughput_tok_per_s"]:
            outcomes = ", ".join(f"{count} {name}" for name, count in point["outcomes"].items() if count)
            return {**blank, "refused": f"requests failed at load {point['load']:g}: {outcomes}"}
    shares = [point["slo_share"] for point in points if point["slo_share"] is not None]
    return {
        **blank,
        "score_tok_per_s": score(points),
        "slo_share": sum(shares) / len(shares) if len(shares) == len(points) else None,
        "refused": None,
    }


def score(points: list[dict]) -> float:
    """Geometric mean of output throughput, every level with the same weight."""
    return math.exp(sum(math.log(point["output_throughput_tok_per_s"]) for point in points) / len(points))


def finalists(name: str, candidates: list[dict], wanted: int, by_objectives: bool) -> list[int]:
    """Indices of the best candidates, best first; of equal ones the earlier. At most `wanted`, and only those that run.

    UserError when none of them runs.
    """
    running = [i for i, candidate in enumerate(candidates) if candidate["score_tok_per_s"] is not None]
    if not running:
        raise UserError(f"contender {name}: none of its {len(candidates)} settings runs: {candidates[0]['refused']}")

    def rank(i: int) -> tuple:
        share = (candidates[i]["slo_share"] or 0.0) if by_objectives else 0.0
        return -share, -candidates[i]["score_tok_per_s"], i

    return sorted(running, key=rank)[:wanted]


def contenders_of_the_race(plan: ServingPlan, tuned: dict[str, dict]) -> list[ServingContender]:
    """Each tuned contender becomes its finalists; a control repeats the first finalist of what it repeats."""
    race: list[ServingContender] = []
    for contender in plan.contenders:
        repeated = tuned.get(contender.control_of) if contender.control_of is not None else None
        if repeated is not None:
            best = repeated["candidates"][repeated["finalists"][0]]["settings"]
            name = finalist_name(contender.control_of, 1, len(repeated["candidates"]))
            race.append(contender.model_copy(update={"control_of": name, "settings": best}))
        elif (found := tuned.get(contender.name)) is not None:
            for place, index in enumerate(found["finalists"], start=1):
                name = finalist_name(contender.name, place, len(found["candidates"]))
                race.append(
                    contender.model_copy(update={"name": name, "settings": found["candidates"][index]["settings"]})
                )
        else:
            race.append(contender)
    return race


def finalist_name(name: str, place: int, tried: int) -> str:
    """`vLLM (finalist 1 of 12)`: whose settings, their place, and how many were tried."""
    return f"{name} (finalist {place} of {tried})"

"""One candidate of the tuning: a fresh server with its settings, judged, then measured at the tuning levels."""

from wholecurve.errors import UserError
from wholecurve.studies.serving.agreed import judged_servers, require
from wholecurve.studies.serving.bench import Bench
from wholecurve.studies.serving.plan_parts import ServingContender
from wholecurve.studies.serving.point import measure
from wholecurve.studies.serving.schedule import TUNING_REPEAT, ServingPoint

_AGREEMENT_TOKENS = 8  # per question; the race asks its finalists for more
_KEPT = (
    *("load_kind", "load", "output_throughput_tok_per_s", "decode_speed_tok_per_s", "ttft_p50_ms", "e2e_p50_ms"),
    *("slo_share", "n_requests", "n_failed", "outcomes", "flags", "took_s"),
)


def measure_candidate(bench: Bench, contender: ServingContender, settings: dict) -> list[dict]:
    """Its points, one per tuning level; UserError where its server does not start, dies, or does not agree."""
    plan, points = bench.plan, []
    with bench.start(contender.model_copy(update={"settings": settings})) as live:
        asked = plan.agreement.model_copy(update={"tokens": _AGREEMENT_TOKENS}) if plan.agreement else None
        require(contender.name, judged_servers(bench, {contender.name: live}, asked)[contender.name], asked)
        for level in plan.tuning.levels:
            point = ServingPoint(0, contender.name, "tuning", plan.load.kind, level, TUNING_REPEAT)
            measured = measure(bench, live, point, plan.tuning.requests)
            if measured is None or measured.died:
                raise UserError(
                    f"contender {contender.name}: its server died at load {level:g} (log: {live.server.log})"
                )
            points.append({name: measured.row[name] for name in _KEPT})
    return points

"""The checks of a card. Each asks one question of a run and answers pass, flag or not checked, with its numbers."""

from collections.abc import Callable

from wholecurve.card.checks import counting, machine, noise, order, record, sides
from wholecurve.card.checks.check import FLAG, NOT_CHECKED, PASS, Check
from wholecurve.card.facts import RunFacts

# In the order of the methodology: what lies on disk, how it was measured, what was counted, how sure it is.
CHECKS: tuple[Callable[[RunFacts], Check | None], ...] = (
    record.plan_is_the_one_hashed,
    record.complete,
    record.follows_from_traces,
    record.of_a_commit,
    record.measured,
    order.alternated,
    order.fresh,
    order.same_requests,
    order.lengths,
    order.warm_up,
    order.restarts,
    sides.alike,
    sides.tuned,
    sides.agreement,
    sides.prefix_cache,
    counting.occupancy,
    counting.littles_law,
    counting.backlog,
    counting.failures,
    counting.short_outputs,
    counting.token_counts,
    counting.percentiles,
    counting.one_denominator,
    counting.windows,
    counting.shape,
    counting.own_flags,
    noise.repeats,
    noise.control,
    noise.open_ends,
    noise.unlike_conditions,
    machine.bounds,
    machine.steady,
    machine.client_lag,
    machine.idle,
)


def run_checks(facts: RunFacts) -> list[Check]:
    """Every check that has a question for this run, in the order of `CHECKS`."""
    return [check for check in (ask(facts) for ask in CHECKS) if check is not None]


__all__ = ["CHECKS", "FLAG", "NOT_CHECKED", "PASS", "Check", "run_checks"]

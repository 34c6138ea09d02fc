"""The checks that a claim can ask for, by the name under which a claims file asks."""

from collections.abc import Callable

from wholecurve.curves.claims.checks.arithmetic import arithmetic, derived, ends, not_published
from wholecurve.curves.claims.checks.baseline import (
    baseline_choice,
    baseline_handicap,
    composite_baseline,
    self_baseline,
)
from wholecurve.curves.claims.checks.conditions import cross_model, framing, operating_point, precision, runs
from wholecurve.curves.claims.checks.identity import identity, occupancy, product_identity
from wholecurve.curves.claims.checks.order import against_one, changes, every_point, larger, trend
from wholecurve.curves.claims.checks.scope import assumption, missing_metrics, remark, speculation, token_accounting
from wholecurve.curves.claims.nouns import Finding

# Checks that decide the verdict of a claim.
DECIDING: dict[str, Callable[..., Finding]] = {
    "arithmetic": arithmetic,
    "range": ends,
    "every point": every_point,
    "against 1": against_one,
    "changes": changes,
    "larger": larger,
    "trend": trend,
    "identity": identity,
    "product identity": product_identity,
    "cross-model": cross_model,
    "not published": not_published,
}
# Checks that stand beside the verdict.
NOTING: dict[str, Callable[..., Finding]] = {
    "framing": framing,
    "operating point": operating_point,
    "runs": runs,
    "precision": precision,
    "occupancy": occupancy,
    "baseline handicap": baseline_handicap,
    "composite baseline": composite_baseline,
    "baseline choice": baseline_choice,
    "self-baseline": self_baseline,
    "missing metrics": missing_metrics,
    "token accounting": token_accounting,
    "assumption": assumption,
    "speculation": speculation,
    "derived": derived,
    "remark": remark,
}
CHECKS = DECIDING | NOTING

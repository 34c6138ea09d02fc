"""The kinds of studies: which plan a file holds, and what runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Union

from wholecurve.errors import UserError
from wholecurve.studies.plan import Plan
from wholecurve.studies.plan_file import read_document, validated

if TYPE_CHECKING:
    from wholecurve.studies.serving.plan import ServingPlan
    from wholecurve.studies.serving.study import ServingStudy
    from wholecurve.studies.study import Study


def read_study_plan(path: Path) -> Union[Plan, "ServingPlan"]:
    """A plan of either kind: `kind: serving` measures servers over HTTP, a plan without `kind` measures engines."""
    document = read_document(path)
    kind = document.get("kind")
    if kind == "serving":
        from wholecurve.studies.serving.plan import ServingPlan

        return validated(ServingPlan, document, path)
    if kind is None and ("workload" in document or "load" in document):
        raise UserError(f"{path}: kind: a plan that puts servers under load needs kind: serving")
    if kind is not None:
        raise UserError(f"{path}: kind: {kind!r} is no kind of study; it is serving, or left out for engines")
    return validated(Plan, document, path)


def study_of(plan: Union[Plan, "ServingPlan"], out: Path) -> Union["Study", "ServingStudy"]:
    """The study of a plan, checked and ready to run into `out`."""
    if isinstance(plan, Plan):
        from wholecurve.studies.study import Study

        return Study(plan, out)
    from wholecurve.studies.serving.study import ServingStudy

    return ServingStudy(plan, out)

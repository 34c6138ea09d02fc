"""The requests behind the points of a run, as the second level of the bootstrap takes them."""

from collections.abc import Collection

import numpy as np

from wholecurve.curves.bootstrap import Requests, RequestSample
from wholecurve.errors import UserError
from wholecurve.runs.folder import RunFolder


def run_requests(
    run: RunFolder,
    contender: str,
    workload: str = "decode",
    only: Collection[tuple[float, int]] | None = None,
) -> Requests:
    """Completed requests of every point of one contender, by (load, repeat), for `compare(requests_a=…)`.

    With ``only``, of the points with these loads and repeats. Failed requests have no latency and are left out, as they
    are in the point itself. Raises UserError where the run has no such points, a trace is missing, or no request of a
    point completed.
    """
    found = {}
    for point_id in run.point_ids():
        row = run.read(f"points/{point_id}")
        if (row["contender"], row["workload"]) != (contender, workload):
            continue
        if only is not None and (row["load"], row["repeat"]) not in only:
            continue
        done = [request for request in run.trace(point_id) if request.completed]
        if not done:
            raise UserError(f"{run.path}: no request of {point_id} completed, so there is nothing to draw again")
        tpot = [np.nan if request.tpot_s is None else request.tpot_s for request in done]
        found[row["load"], row["repeat"]] = RequestSample(
            np.array(tpot), np.array([r.output_tokens for r in done]), np.array([r.e2e_s for r in done])
        )
    if not found:
        raise UserError(f"{run.path}: no {workload} points of {contender!r}")
    return found

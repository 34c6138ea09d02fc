"""One contender's throughput at a stated end-to-end latency: read between measured points, never beyond them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from wholecurve.curves.interpolate import SAME, ParametricCurve, Solution, is_flat
from wholecurve.curves.multipliers import SLOPE_LIMIT, Refused
from wholecurve.errors import UserError


@dataclass(frozen=True)
class LatencyReading:
    """A curve read where its E2E latency equals a target.

    load: the load there · throughput: tok/s per device, by the estimate (PCHIP over load) · linear, log_log: the same
    by straight lines · measured: on a measured point, so that nothing was interpolated.
    """

    load: float
    throughput: float
    linear: float
    log_log: float
    measured: bool


class LatencyCurve:
    """E2E latency [ms] and throughput [tok/s/device] of one contender × workload over load.

    Both are monotone cubics of log load between the points (`ParametricCurve`, whose speed axis carries the latency
    here). Points are geometric means over repeats, or those of one repeat.
    """

    def __init__(self, costs: pd.DataFrame, contender: str, repeat: int | None = None):
        known = costs["e2e_ms"].notna() & costs["throughput_tok_per_s"].notna()
        rows = costs[known & (costs["contender"] == contender)]
        rows = rows if repeat is None else rows[rows["repeat"] == repeat]
        if rows.empty:
            raise Refused(f"{contender} has no point with an E2E latency at p{costs['e2e_percentile'].iloc[0]}")
        logs = np.log(rows[["e2e_ms", "throughput_tok_per_s"]].astype(float))
        means = np.exp(logs.groupby(rows["load"].to_numpy(float)).mean())
        self.name, self.loads = contender, means.index.to_numpy()
        self.latencies_ms, self.throughputs = means.to_numpy().T
        self._curve = ParametricCurve(contender, self.loads, self.latencies_ms, self.throughputs)

    def read(self, target_ms: float, slope_rule: bool = True) -> LatencyReading:
        """Throughput where the latency equals ``target_ms``.

        Raises Refused where the target lies outside the measured latencies, is met at several loads or along a flat
        stretch, and, with ``slope_rule``, where |d log latency / d log throughput| is below 0.1.
        """
        solutions = self._curve.solve("speed", target_ms)
        if not solutions:
            raise Refused(self._out_of_range(target_ms))
        if len(solutions) > 1:
            raise Refused(self._ambiguous(target_ms, solutions))
        if slope_rule:
            self._check_slope(solutions[0])
        linear, log_log = (self._curve.straight("speed", target_ms, solutions[0], log) for log in (False, True))
        found = self._curve.at("throughput", solutions[0])
        return LatencyReading(solutions[0].load, found, linear, log_log, solutions[0].knot is not None)

    def floor_over(self, other: "LatencyCurve", target_ms: float) -> float | None:
        """Throughput ratio over ``other`` at the target from this curve's measured points only; None outside a range.

        The best measured point of this curve that is at least as quick, over the other's measured point there, or over
        the larger one of its two neighbours. Of several solutions the best is taken, so that the floor stays a floor.
        """
        theirs = other._curve.solve("speed", target_ms)
        if not theirs or not self._curve.solve("speed", target_ms):
            return None
        quick = self.latencies_ms <= target_ms * (1 + SAME)
        return float(self.throughputs[quick].max() / max(other._reach(solution) for solution in theirs))

    def _reach(self, solution: Solution) -> float:
        if solution.knot is not None:
            return float(self.throughputs[solution.knot])
        return float(self.throughputs[solution.interval : solution.interval + 2].max())

    def _check_slope(self, solution: Solution) -> None:
        latency, throughput = self._curve.slope("speed", solution), self._curve.slope("throughput", solution)
        if latency is None or (latency != 0 and abs(latency) >= SLOPE_LIMIT * abs(throughput)):
            return
        ratio = abs(latency / throughput) if throughput else 0.0
        raise Refused(
            f"the latency of {self.name} hardly moves around load {solution.load:.4g}: |d log latency / d log "
            f"throughput| = {ratio:.2g}, below {SLOPE_LIMIT}, so that the throughput read there would be arbitrary"
        )

    def _out_of_range(self, target_ms: float) -> str:
        above = target_ms > self.latencies_ms.max()
        edge = int(self.latencies_ms.argmax() if above else self.latencies_ms.argmin())
        most, more = ("longest", "above") if above else ("shortest", "below")
        return (
            f"{seconds(target_ms)} is {more} everything measured of {self.name}, whose {most} latency is "
            f"{seconds(self.latencies_ms[edge])} (load {self.loads[edge]:g}), and nothing is extrapolated"
        )

    def _ambiguous(self, target_ms: float, solutions: list[Solution]) -> str:
        loads = " and ".join(f"{s.load:.4g}" for s in solutions)
        flat = any(is_flat(first, second) for first, second in pairwise(solutions))
        how = f"along a flat stretch, loads {loads}" if flat else f"at more than one load: {loads}"
        return f"{self.name} has a latency of {seconds(target_ms)} {how}; no one load is the match"


def seconds(ms: float) -> str:
    """'0.4500 s', '23.38 s': a latency with four significant digits."""
    text = f"{ms / 1000:#.4g}"
    return f"{text.rstrip('.')} s"


def check_target(target_ms: float) -> None:
    """UserError for a latency target that is not a finite number above 0."""
    if not 0 < target_ms < np.inf:
        raise UserError(f"the latency target is {target_ms:g} ms; a finite number above 0 is needed")

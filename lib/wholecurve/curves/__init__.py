"""Metrics of a point, curves of a contender, and the multipliers between two curves. Never imports torch."""

from wholecurve.curves.baselines import BaselineComparison, best_baseline_table, compare_many
from wholecurve.curves.bootstrap import RequestSample
from wholecurve.curves.compare import Comparison, compare
from wholecurve.curves.costs.formulas import capacity_gain, cost_cut
from wholecurve.curves.curve import Curve
from wholecurve.curves.documents import FullComparison, compare_sources
from wholecurve.curves.frontier import Frontier, frontier_table
from wholecurve.curves.frontier_compare import FrontierComparison, compare_frontiers, frontier_comparison_table
from wholecurve.curves.interpolate import ParametricCurve
from wholecurve.curves.leave_one_out import leave_one_out, leave_one_out_table
from wholecurve.curves.metrics import RequestTrace, percentile, reduce_batch, reduce_prefill, reduce_trace
from wholecurve.curves.serving_metrics import reduce_serving
from wholecurve.curves.slo import Slo
from wholecurve.curves.summaries import summarise
from wholecurve.curves.tables import (
    direct_table,
    gain_text,
    multiplier_text,
    same_speed_table,
    same_throughput_table,
    summary_table,
)

__all__ = [
    "BaselineComparison",
    "Comparison",
    "Curve",
    "Frontier",
    "FrontierComparison",
    "FullComparison",
    "ParametricCurve",
    "RequestSample",
    "RequestTrace",
    "Slo",
    "best_baseline_table",
    "capacity_gain",
    "compare",
    "compare_frontiers",
    "compare_many",
    "compare_sources",
    "cost_cut",
    "direct_table",
    "frontier_comparison_table",
    "frontier_table",
    "gain_text",
    "leave_one_out",
    "leave_one_out_table",
    "multiplier_text",
    "percentile",
    "reduce_batch",
    "reduce_prefill",
    "reduce_serving",
    "reduce_trace",
    "same_speed_table",
    "same_throughput_table",
    "summarise",
    "summary_table",
]

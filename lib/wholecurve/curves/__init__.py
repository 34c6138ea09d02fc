"""Metrics of a point, curves of a contender, and the multipliers between two curves. Never imports torch."""

from wholecurve.curves.compare import Comparison, compare, summarise
from wholecurve.curves.cost import capacity_gain, cost_cut
from wholecurve.curves.curve import Curve
from wholecurve.curves.documents import FullComparison, compare_sources
from wholecurve.curves.interpolate import ParametricCurve
from wholecurve.curves.metrics import RequestTrace, percentile, reduce_prefill, reduce_trace
from wholecurve.curves.tables import (
    direct_table,
    gain_text,
    multiplier_text,
    same_speed_table,
    same_throughput_table,
    summary_table,
)

__all__ = [
    "Comparison",
    "Curve",
    "FullComparison",
    "ParametricCurve",
    "RequestTrace",
    "capacity_gain",
    "compare",
    "compare_sources",
    "cost_cut",
    "direct_table",
    "gain_text",
    "multiplier_text",
    "percentile",
    "reduce_prefill",
    "reduce_trace",
    "same_speed_table",
    "same_throughput_table",
    "summarise",
    "summary_table",
]

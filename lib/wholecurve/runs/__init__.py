"""The record of a run on disk: plan, points, raw traces, provenance; atomic writes and resume."""

from wholecurve.runs.folder import RunFolder

__all__ = ["RunFolder"]

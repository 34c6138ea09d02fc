"""InferenceX: aggregated rows, rows of its dashboard, agentic runs, and summaries of experiments."""

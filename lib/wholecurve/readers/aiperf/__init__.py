"""AIPerf and its predecessor GenAI-Perf: summaries, aggregates over runs, and records of requests."""

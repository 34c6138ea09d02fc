"""llm-d benchmark reports, and those of inference-perf, the harness that they are often made from."""

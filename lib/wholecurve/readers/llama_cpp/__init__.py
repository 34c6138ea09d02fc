"""llama-bench and llama-batched-bench."""

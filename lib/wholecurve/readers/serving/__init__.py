"""vLLM and SGLang: one client measures the server from outside, and both write nearly the same fields."""

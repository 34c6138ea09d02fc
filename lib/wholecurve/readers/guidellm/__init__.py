"""GuideLLM reports, versions 1 and 2."""

"""Steps of a model without scheduler and server: decode over a filled cache, prefill on top of a cached context."""

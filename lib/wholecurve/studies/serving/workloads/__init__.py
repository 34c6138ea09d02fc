"""The requests of a serving study: generated from a seed, or replayed from recorded traces."""

"""The honesty gates: what one curve says against itself, and what sets two curves apart."""

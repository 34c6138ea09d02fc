"""Recorded traces: one reader per format, one form for all of them, and their replay."""

"""Calls of a model: their deltas, what is recorded of them, and how they are rebuilt."""
